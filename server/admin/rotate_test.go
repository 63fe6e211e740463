package admin

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

func TestAnotherPresharedKeyIsAskedForByAnAnnotation(t *testing.T) {
	t.Parallel()
	with, without := peerObject("office", strings.Repeat("b", 32)), peerObject("lab", strings.Repeat("c", 32))
	with.Status.PresharedKey = &v1alpha1.PresharedKeyStatus{Number: 3, Since: metav1.NewTime(time.Now().Add(-time.Hour))}
	inBand := peerObject("ship", strings.Repeat("d", 32))
	inBand.Spec.InBand, inBand.Spec.Endpoints = &v1alpha1.InBand{}, nil
	inBand.Status.PresharedKey = with.Status.PresharedKey.DeepCopy()
	denied := peerObject("denied", strings.Repeat("e", 32)) // it had a tunnel, and a key
	denied.Status.PresharedKey = with.Status.PresharedKey.DeepCopy()
	tunnel := func(fc *v1alpha1.ForeignCluster) *v1alpha1.Tunnel {
		return &v1alpha1.Tunnel{ObjectMeta: metav1.ObjectMeta{Name: fc.Spec.ClusterID}, Spec: v1alpha1.TunnelSpec{PeerID: fc.Spec.ClusterID}}
	}
	a := newAdminTest(t, with, without, inBand, denied, tunnel(with), tunnel(inBand))
	for name, want := range map[string]string{"peers/-": "peers/office,peers/ship", "peers/office": "peers/office", "peers/lab": "", "peers/denied": ""} {
		resp, err := a.alice(t).RotatePresharedKey(t.Context(), &ententev1.RotatePresharedKeyRequest{Name: name})
		if err != nil || strings.Join(resp.GetPeers(), ",") != want {
			t.Errorf("%s: %v, %v, want %s", name, resp, err, want)
		}
		if want == "" {
			continue
		}
		var fc v1alpha1.ForeignCluster
		if err := a.client.Get(t.Context(), ctrlclient.ObjectKey{Name: "office"}, &fc); err != nil {
			t.Fatal(err)
		}
		asked, err := time.Parse(time.RFC3339, fc.Annotations[v1alpha1.AnnotationRotateKey])
		if err != nil || !asked.Equal(resp.GetRequestTime().AsTime()) {
			t.Errorf("%s: the annotation is %q, the answer %v", name, fc.Annotations[v1alpha1.AnnotationRotateKey], resp.GetRequestTime().AsTime())
		}
	}
	if _, err := a.alice(t).RotatePresharedKey(t.Context(), &ententev1.RotatePresharedKeyRequest{Name: "peers/nobody"}); wire.ReasonOf(err) != peering.ReasonPeerUnknown {
		t.Errorf("an unknown peer: %v", err)
	}
}

// A key that is used since this second is older than what is asked for in it.
func TestAnAskedRotationIsYoungerThanKeysInUse(t *testing.T) {
	t.Parallel()
	for _, ns := range []int{0, 1, 999_999_999} {
		now := time.Unix(1e9, int64(ns))
		if asked := askTime(now); asked.Nanosecond() != 0 || asked.Before(now) || asked.Sub(now) >= time.Second {
			t.Errorf("at %v: %v", now, asked)
		}
	}
}

func TestOtherKeysOfNodesAreAskedForByAnAnnotation(t *testing.T) {
	node := func(name string) *v1alpha1.FabricNode {
		return &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)}}
	}
	a := newAdminTest(t, node("n1"), node("n2"))
	asked := func(name string) string {
		var n v1alpha1.FabricNode
		if err := a.client.Get(t.Context(), ctrlclient.ObjectKey{Name: name}, &n); err != nil {
			t.Fatal(err)
		}
		return n.Annotations[v1alpha1.AnnotationRotateKey]
	}
	c := a.alice(t)
	resp, err := c.RotateNodeKeys(t.Context(), &ententev1.RotateNodeKeysRequest{Nodes: []string{"n2"}})
	if err != nil || strings.Join(resp.GetNodes(), ",") != "n2" || asked("n1") != "" || asked("n2") != resp.GetRequestTime().AsTime().Format(time.RFC3339) {
		t.Errorf("one: %v, %v; n1 is asked %q, n2 %q", resp, err, asked("n1"), asked("n2"))
	}
	if resp, err = c.RotateNodeKeys(t.Context(), &ententev1.RotateNodeKeysRequest{}); err != nil || strings.Join(resp.GetNodes(), ",") != "n1,n2" || asked("n1") == "" {
		t.Errorf("all: %v, %v; n1 is asked %q", resp, err, asked("n1"))
	}
	if _, err = c.RotateNodeKeys(t.Context(), &ententev1.RotateNodeKeysRequest{Nodes: []string{"n3"}}); wire.ReasonOf(err) != peering.ReasonRequestInvalid {
		t.Errorf("a node that is not there: %v", err)
	}
}
