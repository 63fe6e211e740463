package controller

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// seenBy is a peer that reports where it sees the gateway "key", and this cluster's agent.
func seenBy(id, gateway, agent string, since time.Time) v1alpha1.ForeignCluster {
	fc := v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: id}}
	fc.Spec.ClusterID = id
	fc.Status.Network = &v1alpha1.PeerNetwork{OwnAddress: agent}
	if gateway != "" {
		fc.Status.Network.Observations = []v1alpha1.Observation{{PublicKey: "key", Endpoint: gateway, Since: metav1.NewTime(since)}}
	}
	return fc
}

func TestObservedPlacesOfAGatewayAreOrdered(t *testing.T) {
	t.Parallel()
	early, late := time.Unix(1_700_000_000, 0), time.Unix(1_700_000_900, 0)
	node := &v1alpha1.FabricNode{}
	node.Spec.Endpoints = []string{"10.0.0.1:51820"}
	node.Status.PublicKey, node.Status.Endpoints = "key", []string{"10.0.0.1:51820"}
	crowd := func(n int) (out []v1alpha1.ForeignCluster) {
		for i := range n {
			out = append(out, seenBy(fmt.Sprintf("liar-%02d", i), fmt.Sprintf("192.0.2.%d:1", i+1), fmt.Sprintf("192.0.2.%d", 100+i), late))
		}
		return out
	}
	for name, row := range map[string]struct {
		peers []v1alpha1.ForeignCluster
		want  []string
	}{
		"no peer sees it":                          {},
		"a peer without a tunnel reports nothing":  {peers: []v1alpha1.ForeignCluster{{}}},
		"as another sees it":                       {peers: []v1alpha1.ForeignCluster{seenBy("b", "203.0.113.1:4711", "", early)}, want: []string{"203.0.113.1:4711"}},
		"at the address of the agent, on its port": {peers: []v1alpha1.ForeignCluster{seenBy("me", "", "203.0.113.1", early)}, want: []string{"203.0.113.1:51820"}},
		"a place that is announced is not repeated": {
			peers: []v1alpha1.ForeignCluster{seenBy("b", "10.0.0.1:51820", "10.0.0.1", early)},
		},
		"where no gateway can be": {peers: []v1alpha1.ForeignCluster{seenBy("b", "127.0.0.1:53", "169.254.169.254", early)}},
		"what several report comes first, then what was reported first, then the agents' addresses": {
			peers: []v1alpha1.ForeignCluster{
				seenBy("b", "203.0.113.2:1", "203.0.113.9", late), seenBy("c", "203.0.113.3:1", "", early),
				seenBy("d", "203.0.113.4:1", "", late), seenBy("e", "203.0.113.4:1", "", late),
			},
			want: []string{"203.0.113.4:1", "203.0.113.3:1", "203.0.113.2:1", "203.0.113.9:51820"},
		},
		"a peer's own report comes first for it, whatever others report": {
			peers: append(crowd(20), seenBy("me", "203.0.113.2:1", "203.0.113.3", late)),
			want:  []string{"203.0.113.2:1", "203.0.113.3:51820", "192.0.2.1:1", "192.0.2.2:1"},
		},
		"a crowd that comes later does not displace who was right before": {
			peers: append(crowd(20), seenBy("b", "203.0.113.2:1", "", early)),
			want:  []string{"203.0.113.2:1", "192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for range 2 { // in any order
				slices.Reverse(row.peers)
				if got := wire.Texts(observedAt(node, "me", row.peers)); !slices.Equal(got, row.want) {
					t.Errorf("got %v, want %v", got, row.want)
				}
			}
		})
	}
}

func TestObservationsAreThoseOfMostGateways(t *testing.T) {
	t.Parallel()
	key := base64.StdEncoding.EncodeToString(make([]byte, 32))
	node := func(peer, key, at string) v1alpha1.FabricNode {
		n := v1alpha1.FabricNode{}
		n.Status.ObservedGateways = []v1alpha1.ObservedGateway{{PeerID: peer, PublicKey: key, Endpoint: at}}
		return n
	}
	got, _ := observations([]v1alpha1.FabricNode{
		node("me", key, "192.0.2.9:9"), node("me", key, "192.0.2.1:1"), node("me", key, "192.0.2.9:9"),
		node("you", key, "192.0.2.7:7"), node("me", "short", "192.0.2.1:1"), node("me", key, "nowhere"), node("me", key, "127.0.0.1:1"),
	}, "me")
	want := []peering.Observation{{Endpoint: netip.MustParseAddrPort("192.0.2.9:9")}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// What a peer reports of this cluster is sent to all others, so it changes seldom.
func TestPeerChangesObservedAddressAtLimitedRate(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	pt := newPeersTest(t, peertest.TrustedAs("milan", milan))
	now, told := time.Unix(1_700_000_000, 0), 0
	pt.States.Now, pt.States.Observed = func() time.Time { return now }, func() { told++ }
	says := func(at string) error {
		return pt.States.Observe(t.Context(), milan.ID, peering.PeerState{Network: &peering.Network{
			Observations: []peering.Observation{{PublicKey: [32]byte{1}, Endpoint: netip.MustParseAddrPort(at)}},
		}})
	}
	kept := func() v1alpha1.Observation {
		var fc v1alpha1.ForeignCluster
		if err := pt.Client.Get(t.Context(), client.ObjectKey{Name: "milan"}, &fc); err != nil {
			t.Fatal(err)
		}
		return fc.Status.Network.Observations[0]
	}
	if err := says("192.0.2.1:1"); err != nil || told != 1 || kept().Endpoint != "192.0.2.1:1" {
		t.Fatalf("err %v, called %d times, kept %v", err, told, kept())
	}
	first := kept()
	now = now.Add(observedPause / 2)
	if err := says("192.0.2.1:1"); err != nil || told != 1 || kept() != first {
		t.Errorf("what was reported before: err %v, called %d times, kept %v", err, told, kept())
	}
	for range 10 {
		var later *store.LaterError
		if err := says("192.0.2.2:2"); !errors.As(err, &later) || later.After != observedPause/2 || told != 1 || kept().Endpoint != "192.0.2.1:1" {
			t.Fatalf("too soon: err %v, called %d times, kept %v", err, told, kept())
		}
	}
	now = now.Add(observedPause / 2)
	if err := says("192.0.2.2:2"); err != nil || told != 2 || kept().Endpoint != "192.0.2.2:2" {
		t.Errorf("in time: err %v, called %d times, kept %v", err, told, kept())
	}
}

func TestGatewaysDoNotDialIntoThisCluster(t *testing.T) {
	t.Parallel()
	in := []v1alpha1.Gateway{{Name: "a", Endpoints: []string{"10.0.0.1:1"}, ObservedEndpoints: []string{"10.0.0.1:1", "192.0.2.1:1"}}}
	out := dialable(in, func(e string) bool { return e != "10.0.0.1:1" })
	if !slices.Equal(out[0].ObservedEndpoints, []string{"192.0.2.1:1"}) || !slices.Equal(out[0].Endpoints, in[0].Endpoints) {
		t.Errorf("got %+v", out)
	}
	if len(in[0].ObservedEndpoints) != 2 {
		t.Errorf("the input was changed: %+v", in)
	}
}
