package agent

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/vk"
)

// A clusterSelector of zone a selects a node no longer of which some machines are elsewhere.
func TestAVirtualNodeLosesLabelsThatItsProvidersOfferContradicts(t *testing.T) {
	t.Parallel()
	peer := peertest.NewOther(t, "office").ID
	fc := &v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "office"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: string(peer)}}
	fc.Status.Offer = &v1alpha1.Offer{NodeLabels: map[string]string{corev1.LabelArchStable: "amd64", corev1.LabelOSStable: "linux"}, ObservedAt: metav1.Now()}
	n := &nodes{kubernetes: fake.NewSimpleClientset(), sessions: noAttendance{}, addresses: &addresses{client: peertest.Client(t, fc)}}
	spec := controller.NodeSpec{Name: "office", Contract: "c-1", Peer: peer, AcceptNew: true, Labels: map[string]string{
		corev1.LabelArchStable: "amd64", corev1.LabelTopologyZone: "a", corev1.LabelOSStable: "linux",
	}}
	v := &virtual{spec: spec}
	v.labels.Store(&map[string]string{})
	var err error
	if v.node, err = vk.New(vk.Config{
		Name: spec.Name, Contract: spec.Contract, Peer: string(peer), Client: n.kubernetes, Mirror: &mirrored{}, Streams: streams{}, Labels: spec.Labels,
		Namespaces: func() ([]vk.Namespace, error) { return nil, errors.New("not known yet") },
	}); err != nil {
		t.Fatal(err)
	}
	if err := n.follow(t.Context(), v, spec); err != nil {
		t.Fatal(err)
	}
	for _, labels := range []map[string]string{v.spec.Labels, *v.labels.Load()} {
		if zone, has := labels[corev1.LabelTopologyZone]; has || labels[corev1.LabelArchStable] != "amd64" {
			t.Errorf("it has zone %q and architecture %q", zone, labels[corev1.LabelArchStable])
		}
	}
}

func TestPeersStayAsFarAsTheyAreForAWhile(t *testing.T) {
	t.Parallel()
	var d distances
	start := time.Unix(0, 0)
	for i, step := range []struct {
		after, roundTrip time.Duration
		want             int
	}{
		{0, 0, 0},
		{time.Second, 3 * time.Millisecond, 5},
		{2 * time.Second, 80 * time.Millisecond, 5}, // a minute must pass
		{61 * time.Second, 5800 * time.Microsecond, 5},
		{62 * time.Second, 80 * time.Millisecond, 100},
		{63 * time.Second, time.Millisecond, 100},
		{200 * time.Second, 0, 100}, // it is away
		{201 * time.Second, 200 * time.Second, 10_000},
	} {
		if got := d.update("there", step.roundTrip, start.Add(step.after)); got != step.want {
			t.Errorf("step %d: %d, want %d", i, got, step.want)
		}
	}
	if got := d.update("third", 0, start); got != 0 {
		t.Errorf("an unknown peer is %d away", got)
	}
}
