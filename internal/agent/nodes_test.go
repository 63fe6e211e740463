package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	ctrlfake "sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/vk"
)

// callsOnly is a connection that counts the streams that are asked for, and has none.
type callsOnly struct{ streams atomic.Int32 }

func (*callsOnly) Invoke(context.Context, string, any, any, ...grpc.CallOption) error {
	return errors.ErrUnsupported
}

func (c *callsOnly) NewStream(context.Context, *grpc.StreamDesc, string, ...grpc.CallOption) (grpc.ClientStream, error) {
	c.streams.Add(1)
	return nil, errors.ErrUnsupported
}

type noAttendance struct{}

func (noAttendance) Attend(peering.ClusterID, bool)                {}
func (noAttendance) Silence(peering.ClusterID) (time.Time, bool)   { return time.Time{}, false }
func (noAttendance) RoundTrip(peering.ClusterID) (_ time.Duration) { return 0 }

// alive has a virtual node and its mirror live in a bubble of synctest until the end of the test.
func alive(t *testing.T, home *fake.Clientset, conn grpc.ClientConnInterface) (v *virtual, end func()) {
	t.Helper()
	n := &nodes{
		kubernetes: home, sessions: noAttendance{}, contractChanged: func(string) {},
		addresses: &addresses{client: ctrlfake.NewClientBuilder().WithScheme(kube.Scheme()).Build()},
	}
	v = &virtual{spec: controller.NodeSpec{Name: "office", Contract: "c-1", Peer: "peerpeerpeerpeerpeerpeerpeerpeer"}, done: make(chan struct{})}
	var err error
	v.node, err = vk.New(vk.Config{
		Name: "office", Contract: "c-1", Peer: string(v.spec.Peer), Client: home, Mirror: &mirrored{}, Streams: streams{},
		Namespaces: func() ([]vk.Namespace, error) { return nil, errors.New("not known yet") },
	})
	if err != nil {
		t.Fatal(err)
	}
	v.mirror, err = client.NewMirror(client.MirrorConfig{Contract: "c-1", Conn: conn, Handler: v.node})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	v.cancel = cancel
	go n.live(ctx, v, slog.New(slog.DiscardHandler))
	return v, func() {
		cancel()
		<-v.done
	}
}

// A provider sends each status once in a stream. The status of a pod that is not known yet could be lost.
func TestAProviderIsAskedOnceThePodsOfHomeAreKnown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home := fake.NewSimpleClientset()
		var answers atomic.Bool
		home.PrependReactor("list", "pods", func(k8stesting.Action) (bool, runtime.Object, error) {
			return !answers.Load(), nil, errors.New("the API server does not respond yet")
		})
		conn := &callsOnly{}
		_, end := alive(t, home, conn)
		time.Sleep(time.Minute)
		if got := conn.streams.Load(); got != 0 {
			t.Errorf("%d streams began before home's pods were known", got)
		}
		answers.Store(true)
		time.Sleep(time.Minute)
		if conn.streams.Load() == 0 {
			t.Error("no stream began though home's pods are known")
		}
		end()
	})
}

func TestAVirtualNodeReportsThatItsMirrorIsFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		home := fake.NewSimpleClientset()
		v, end := alive(t, home, &callsOnly{})
		shown := func(full bool) {
			t.Helper()
			time.Sleep(time.Minute)
			node, err := home.CoreV1().Nodes().Get(t.Context(), "office", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			for _, c := range node.Status.Conditions {
				if c.Type == "entente.dev/TooManyObjects" && (c.Status == corev1.ConditionTrue) == full {
					return
				}
			}
			t.Errorf("the conditions are %+v, want that it is full: %v", node.Status.Conditions, full)
		}
		ref := func(i int) peering.ObjectRef {
			return peering.ObjectRef{Kind: peering.KindConfigMap, Namespace: fmt.Sprint("shop-", i), Name: "config", UID: fmt.Sprint(i)}
		}
		shown(false)
		const most = 20_000
		for i := range most + 1 {
			v.mirror.Want(peering.Object{Ref: ref(i), JSON: []byte("{}")})
		}
		shown(true)
		v.mirror.Unwant(ref(0), nil)
		v.mirror.Want(peering.Object{Ref: ref(most), JSON: []byte("{}")})
		shown(false)
		end()
	})
}

// A node of home that is cut off must not keep pods off the provider.
func TestTunnelOfAVirtualNodePassesWhileSomeNodesAreCutOff(t *testing.T) {
	t.Parallel()
	for reason, up := range map[string]bool{v1alpha1.ReasonNodesCutOff: true, "ProbesLost": false} {
		fc := &v1alpha1.ForeignCluster{}
		fc.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionNetwork, Status: metav1.ConditionFalse, Reason: reason}}
		if got := networkOf(fc); got.Up != up || !got.Known || got.Reason != reason {
			t.Errorf("%s: %+v", reason, got)
		}
	}
}
