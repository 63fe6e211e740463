package controller

import (
	"encoding/base64"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/inband"
	"github.com/entente-dev/entente/tunnel/plan"
)

func key64(b byte) string {
	key := [32]byte{b}
	return base64.StdEncoding.EncodeToString(key[:])
}

// exchangeOf is the exchange of another cluster.
func exchangeOf(t testing.TB, id peering.ClusterID) *inband.Exchange {
	t.Helper()
	e, err := inband.NewExchange(id, []byte(id))
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// inBandPeer is a cluster that an administrator named, with the parameters of its own one.
func inBandPeer(t testing.TB, name string, o peertest.Other) *v1alpha1.ForeignCluster {
	t.Helper()
	fc := peertest.ApprovedAs(name, o)
	public := exchangeOf(t, o.ID).Public()
	fc.Spec.InBand = &v1alpha1.InBand{ExchangeKey: base64.StdEncoding.EncodeToString(public[:]), Gateways: []v1alpha1.InBandGateway{
		{Name: "gw1", PublicKey: key64(1), Endpoints: []string{"192.0.2.1:51820"}},
	}}
	return fc
}

func newInBandTest(t testing.TB, objects ...client.Object) *peersTest {
	t.Helper()
	pt := newPeersTest(t, objects...)
	pt.InBand = InBand{Agent: "10.0.0.9:7448", Overlay: plan.Overlay}
	pt.States.Exchange = exchangeOf(t, peertest.OwnID)
	pt.States.KeyShare = func(peering.ClusterID, uint64) peering.PresharedKeyShare { return peering.PresharedKeyShare{1} }
	pt.States.Endpoints = func() []string { return []string{"home.example.com:7443"} }
	pt.AliasPool = []netip.Prefix{netip.MustParsePrefix("10.128.0.0/12")}
	return pt
}

func (pt *peersTest) tunnelTo(t testing.TB, name string) v1alpha1.TunnelSpec {
	t.Helper()
	var tunnel v1alpha1.Tunnel
	if err := pt.Client.Get(t.Context(), client.ObjectKey{Name: name}, &tunnel); err != nil {
		t.Fatal(err)
	}
	return tunnel.Spec
}

func (pt *peersTest) keyOf(t testing.TB, id peering.ClusterID) []byte {
	t.Helper()
	var keys corev1.Secret
	if err := pt.Client.Get(t.Context(), client.ObjectKeyFromObject(keysSecret()), &keys); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
	return keys.Data[string(id)]
}

// pass lets the pause between two writes of a Tunnel go by.
func (pt *peersTest) pass() { pt.clock.Pass(2 * tunnelPause) }

func TestAnInBandPeerHasATunnelFromTheBeginningToTheEnd(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	pt := newInBandTest(t, inBandPeer(t, "milan", milan))
	pt.look(t, "milan")

	// Before there is trust: for the peer API alone.
	bare := v1alpha1.TunnelSpec{
		ForeignCluster: "milan", PeerID: string(milan.ID), InBand: &v1alpha1.TunnelInBand{Agent: "10.0.0.9:7448"},
		Gateways: []v1alpha1.Gateway{{Name: "gw1", PublicKey: key64(1), Endpoints: []string{"192.0.2.1:51820"}, OverlayAddress: plan.Overlay(string(milan.ID), "gw1").String()}},
	}
	if diff := cmp.Diff(bare, pt.tunnelTo(t, "milan")); diff != "" {
		t.Fatalf("tunnel (-want +got)\n%s", diff)
	}
	theirs, err := exchangeOf(t, milan.ID).PresharedKey(peertest.OwnID, exchangeOf(t, peertest.OwnID).Public())
	if err != nil || !slices.Equal(pt.keyOf(t, milan.ID), theirs[:]) {
		t.Errorf("the two sides have different keys (%v)", err)
	}
	fc := peertest.PeerCalled(t, pt.Client, "milan")
	if len(fc.Finalizers) != 1 {
		t.Error("without a finalizer the tunnel outlives the peer")
	}
	if c := meta.FindStatusCondition(fc.Status.Conditions, v1alpha1.ConditionTrusted); c == nil || c.Reason != "AwaitingTunnel" {
		t.Errorf("trust waits by %+v", c)
	}

	// A contract adds prefixes, and what ends it takes them.
	contract := peertest.ContractWith(milan, "c-1", v1alpha1.ContractConsumer)
	if err := pt.Client.Create(t.Context(), contract); err != nil {
		t.Fatal(err)
	}
	told := peering.Gateway{Name: "gw2", PublicKey: [32]byte{2}, Overlay: plan.Overlay(string(milan.ID), "gw2")}
	network := &peering.Network{
		Gateways: []peering.Gateway{told}, Prefixes: []netip.Prefix{prefix("10.0.0.0/16")}, PresharedKeyShare: peering.PresharedKeyShare{2},
		Aliases: []peering.Alias{{Prefix: prefix("10.0.0.0/16"), Alias: prefix("10.200.0.0/16")}},
	}
	if err := pt.States.Observe(t.Context(), milan.ID, peering.PeerState{Endpoints: []string{"milan.example.com:7443"}, Network: network}); err != nil {
		t.Fatal(err)
	}
	pt.pass()
	pt.look(t, "milan")
	got := pt.tunnelTo(t, "milan")
	if len(got.Local) != 1 || len(got.Remote) != 1 || got.InBand == nil || len(got.Gateways) != 1 || got.Gateways[0].Name != "gw2" {
		t.Errorf("with a contract the tunnel is %+v", got)
	}
	if !slices.Equal(pt.keyOf(t, milan.ID), theirs[:]) {
		t.Error("the key changed: the side that learns of it last could not be reached to learn of it")
	}
	if e := peertest.PeerCalled(t, pt.Client, "milan").Spec.Endpoints; len(e) > 0 {
		t.Errorf("endpoints %q are kept", e)
	}
	contract.Status.Phase = peering.PhaseClosed.String()
	if err := pt.Client.Status().Update(t.Context(), contract); err != nil {
		t.Fatal(err)
	}
	pt.pass()
	pt.look(t, "milan")
	if got := pt.tunnelTo(t, "milan"); len(got.Local)+len(got.Remote)+len(got.Allow) > 0 || got.InBand == nil {
		t.Errorf("without the contract the tunnel is %+v", got)
	}

	// Its administrator gives it up.
	fc = peertest.PeerCalled(t, pt.Client, "milan")
	fc.Spec.InBand = nil
	if err := pt.Client.Update(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	pt.pass()
	pt.look(t, "milan")
	if pt.hasTunnel(t, "milan") || pt.keyOf(t, milan.ID) != nil {
		t.Error("a tunnel or a key is left")
	}
	if c := meta.FindStatusCondition(peertest.PeerCalled(t, pt.Client, "milan").Status.Conditions, v1alpha1.ConditionInBand); c != nil {
		t.Errorf("the condition is still %+v", c)
	}
}

func TestAnInBandPeerHearsOfTheEndThroughTheTunnel(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	trusted := func() *v1alpha1.ForeignCluster {
		fc := inBandPeer(t, "milan", milan)
		fc.Spec.TrustBundle = milan.Info.PEM()
		fc.Finalizers = []string{v1alpha1.Finalizer}
		return fc
	}
	t.Run("that it is denied", func(t *testing.T) {
		t.Parallel()
		pt := newInBandTest(t, trusted())
		pt.trust.set(milan.ID, trust.Session{Up: &trust.SessionInfo{Since: pt.clock.Now(), InBand: true}})
		pt.look(t, "milan")
		denied := peertest.PeerCalled(t, pt.Client, "milan")
		denied.Spec.Decision = v1alpha1.DecisionDenied
		if err := pt.Client.Update(t.Context(), denied); err != nil {
			t.Fatal(err)
		}
		pt.look(t, "milan")
		if !pt.hasTunnel(t, "milan") {
			t.Error("the tunnel is gone before the peer was notified through it")
		}
		<-pt.again
		for range 2 {
			pt.pass()
			pt.look(t, "milan")
		}
		if len(pt.trust.told) != 1 || pt.hasTunnel(t, "milan") || pt.keyOf(t, milan.ID) != nil {
			t.Errorf("notified %v, and the tunnel exists: %t", pt.trust.told, pt.hasTunnel(t, "milan"))
		}
	})
	t.Run("that contracts are over, as it is forgotten", func(t *testing.T) {
		t.Parallel()
		c := peertest.ContractWith(milan, "c-1", v1alpha1.ContractProvider)
		c.Status.Phase, c.Finalizers = peering.PhaseClosed.String(), []string{v1alpha1.Finalizer}
		pt := newInBandTest(t, trusted(), c)
		pt.look(t, "milan")
		if err := pt.Client.Delete(t.Context(), peertest.PeerCalled(t, pt.Client, "milan")); err != nil {
			t.Fatal(err)
		}
		pt.pass()
		pt.look(t, "milan")
		if !pt.hasTunnel(t, "milan") {
			t.Error("the tunnel is gone while the peer is waited for")
		}
		// It was notified.
		if err := pt.Client.Get(t.Context(), client.ObjectKeyFromObject(c), c); err != nil {
			t.Fatal(err)
		}
		c.Finalizers = nil
		if err := pt.Client.Update(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		pt.pass()
		pt.look(t, "milan")
		if pt.hasTunnel(t, "milan") || pt.keyOf(t, milan.ID) != nil {
			t.Error("a tunnel or a key is left")
		}
	})
}

func TestAPeerThatRevokedItsTrustIsReachedStill(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	fc := inBandPeer(t, "milan", milan)
	fc.Spec.TrustBundle = milan.Info.PEM()
	pt := newInBandTest(t, fc)
	pt.look(t, "milan")
	pt.trust.set(milan.ID, trust.Session{Why: "denied", Denied: true, Untrusted: true, At: pt.clock.Now().Add(time.Hour)})
	pt.pass()
	pt.look(t, "milan")
	if c := pt.trustedIs(t, "milan"); c.Status != metav1.ConditionFalse {
		t.Fatalf("trusted is %+v", c)
	}
	if !pt.hasTunnel(t, "milan") {
		t.Error("it has no path by which it could trust again")
	}
}

func TestAnInBandPeerIsSentItsParameters(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	fc := inBandPeer(t, "milan", milan)
	fc.Spec.TrustBundle = milan.Info.PEM()
	gateway := &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	gateway.Spec.Gateway, gateway.Spec.Endpoints = true, []string{"198.51.100.1:51820"}
	gateway.Status.PublicKey, gateway.Status.OverlayAddress = key64(9), "fd00::9"
	pt := newInBandTest(t, fc, gateway)
	state, err := pt.States.State(t.Context(), milan.ID)
	if err != nil {
		t.Fatal(err)
	}
	if len(state.Endpoints) > 0 || state.Network == nil || len(state.Network.Gateways) != 1 || len(state.Network.Prefixes) > 0 || !state.Network.PresharedKeyShare.IsZero() {
		t.Errorf("without a contract it is sent %+v", state)
	}
	if err := pt.Client.Create(t.Context(), peertest.ContractWith(milan, "c-1", v1alpha1.ContractConsumer)); err != nil {
		t.Fatal(err)
	}
	if state, err = pt.States.State(t.Context(), milan.ID); err != nil {
		t.Fatal(err)
	}
	if len(state.Network.Prefixes) != 1 || !state.Network.PresharedKeyShare.IsZero() {
		t.Errorf("with a contract it is sent %+v", state.Network)
	}
}

func TestWhichGatewaysOfAnInBandPeerCount(t *testing.T) {
	t.Parallel()
	in := InBand{Overlay: plan.Overlay}
	written := func(name string, key byte, endpoints ...string) v1alpha1.InBandGateway {
		return v1alpha1.InBandGateway{Name: name, PublicKey: key64(key), Endpoints: endpoints}
	}
	told := func(name string, key byte, endpoints ...string) v1alpha1.Gateway {
		return v1alpha1.Gateway{Name: name, PublicKey: key64(key), Endpoints: endpoints, OverlayAddress: plan.Overlay("abc", name).String()}
	}
	for name, tc := range map[string]struct {
		written []v1alpha1.InBandGateway
		told    []v1alpha1.Gateway
		// since: an administrator wrote something after the peer announced what it did.
		since bool
		want  []v1alpha1.Gateway
	}{
		"at first those that were written":   {written: []v1alpha1.InBandGateway{written("a", 1, "w:1")}, want: []v1alpha1.Gateway{told("a", 1, "w:1")}},
		"then those that the peer announces": {written: []v1alpha1.InBandGateway{written("a", 1)}, told: []v1alpha1.Gateway{told("b", 2)}, want: []v1alpha1.Gateway{told("b", 2)}},
		"of one that both name, the endpoints of both": {
			written: []v1alpha1.InBandGateway{written("a", 1, "w:1", "t:1")}, told: []v1alpha1.Gateway{told("a", 1, "t:1")}, want: []v1alpha1.Gateway{told("a", 1, "t:1", "w:1")},
		},
		"the peer announces a key that was replaced": {
			written: []v1alpha1.InBandGateway{written("a", 1, "w:1")}, told: []v1alpha1.Gateway{told("a", 9, "t:1")}, want: []v1alpha1.Gateway{told("a", 9, "t:1")},
		},
		"what was written since counts first": {
			written: []v1alpha1.InBandGateway{written("a", 3, "w:1")}, told: []v1alpha1.Gateway{told("a", 1, "t:1"), told("b", 2)}, since: true,
			want: []v1alpha1.Gateway{told("a", 3, "w:1"), told("b", 2)},
		},
	} {
		fc := &v1alpha1.ForeignCluster{}
		fc.Spec.ClusterID, fc.Spec.InBand = "abc", &v1alpha1.InBand{Gateways: tc.written}
		if tc.told != nil {
			fc.Status.Network = &v1alpha1.PeerNetwork{Gateways: tc.told, InBandHash: inBandHash(fc.Spec.InBand)}
			if tc.since {
				fc.Status.Network.InBandHash = "of before"
			}
		}
		before := fc.DeepCopy()
		if diff := cmp.Diff(tc.want, in.gateways(fc)); diff != "" {
			t.Errorf("%s (-want +got)\n%s", name, diff)
		}
		if diff := cmp.Diff(before, fc); diff != "" {
			t.Errorf("%s: the peer was changed\n%s", name, diff)
		}
	}
}

func TestConditionInBandNamesTheHopThatIsMissing(t *testing.T) {
	t.Parallel()
	now := time.Now()
	node := func(edit func(*v1alpha1.FabricNode)) v1alpha1.FabricNode {
		n := v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
		n.Spec.Gateway, n.Status.ObservedAt, n.Status.Relays = true, metav1.NewTime(now), []string{"10.0.0.1:7448"}
		n.Status.Paths = []v1alpha1.FabricPath{{PeerID: "abc", Node: "gw1", Standby: true, State: "Up"}, {PeerID: "other", State: "Up"}}
		if edit != nil {
			edit(&n)
		}
		return n
	}
	for name, tc := range map[string]struct {
		node       v1alpha1.FabricNode
		edit       func(*PeerSnapshot)
		want, says string
	}{
		"all is there":       {node: node(nil), want: "TunnelUp", says: "gw1"},
		"no gateway":         {node: node(func(n *v1alpha1.FabricNode) { n.Spec.Gateway = false }), want: "NoGateway", says: "DaemonSet"},
		"no relay":           {node: node(func(n *v1alpha1.FabricNode) { n.Status.Relays = nil }), want: "NoRelay", says: "problems"},
		"a fabric is silent": {node: node(func(n *v1alpha1.FabricNode) { n.Status.ObservedAt = metav1.NewTime(now.Add(-time.Hour)) }), want: "FabricSilent", says: "n1"},
		"not taken up":       {node: node(func(n *v1alpha1.FabricNode) { n.Status.Paths = n.Status.Paths[1:] }), want: "Applying"},
		"no answer": {
			node: node(func(n *v1alpha1.FabricNode) {
				n.Status.Paths[0].State, n.Status.Paths[0].Message = "Down", "probes are lost"
			}),
			want: "AwaitingPeer", says: "node n1: probes are lost; the peer's administrator",
		},
		"a bad key": {node: node(nil), edit: func(v *PeerSnapshot) { v.KeyProblem = "spec.inBand.exchangeKey is bad" }, want: "KeyInvalid", says: "exchangeKey"},
		"denied":    {node: node(nil), edit: func(v *PeerSnapshot) { v.Peer.Spec.Decision = v1alpha1.DecisionDenied }, want: "Denied"},
	} {
		fc := &v1alpha1.ForeignCluster{}
		fc.Spec.ClusterID, fc.Spec.InBand = "abc", &v1alpha1.InBand{}
		v := PeerSnapshot{Peer: fc, FabricNodes: []v1alpha1.FabricNode{tc.node}, Now: now}
		if tc.edit != nil {
			tc.edit(&v)
		}
		got := inBand(v)
		if got.Reason != tc.want || (got.Status == metav1.ConditionTrue) != (tc.want == "TunnelUp") || !strings.Contains(got.Message, tc.says) {
			t.Errorf("%s: %+v, want %s that says %q", name, got, tc.want, tc.says)
		}
	}
}

func TestAnUnusableKeyIsReportedAndMakesNoTunnel(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	fc := inBandPeer(t, "milan", milan)
	fc.Spec.InBand.ExchangeKey = key64(0) // of low order: everybody knows what it leads to
	pt := newInBandTest(t, fc)
	pt.look(t, "milan")
	c := meta.FindStatusCondition(peertest.PeerCalled(t, pt.Client, "milan").Status.Conditions, v1alpha1.ConditionInBand)
	if c == nil || c.Reason != "KeyInvalid" || pt.hasTunnel(t, "milan") {
		t.Errorf("the condition is %+v, and there is a tunnel: %t", c, pt.hasTunnel(t, "milan"))
	}
}
