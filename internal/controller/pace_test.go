package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/allow"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/transit"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
)

// countingClient counts the bytes of the objects that are written through it, whole, as
// etcd keeps them.
type countingClient struct {
	client.Client
	mu     sync.Mutex
	bytes  int
	writes int
	// refuse returns why a write is refused; nil refuses none.
	refuse func(client.Object) error
}

func (c *countingClient) count(o client.Object, write func() error) error {
	if c.refuse != nil {
		if err := c.refuse(o); err != nil {
			return err
		}
	}
	if err := write(); err != nil {
		return err
	}
	text, err := json.Marshal(o)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.bytes, c.writes = c.bytes+len(text), c.writes+1
	return err
}

func (c *countingClient) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	return c.count(o, func() error { return c.Client.Create(ctx, o, opts...) })
}

func (c *countingClient) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	return c.count(o, func() error { return c.Client.Update(ctx, o, opts...) })
}

func (c *countingClient) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	return c.count(o, func() error { return c.Client.Patch(ctx, o, p, opts...) })
}

func (c *countingClient) Status() client.SubResourceWriter {
	return countingStatus{c.Client.Status(), c}
}

type countingStatus struct {
	client.SubResourceWriter
	of *countingClient
}

func (s countingStatus) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.SubResourcePatchOption) error {
	return s.of.count(o, func() error { return s.SubResourceWriter.Patch(ctx, o, p, opts...) })
}

// withinBudget fails if more bytes were written than one peer may have written in a time.
func (c *countingClient) withinBudget(t *testing.T, took time.Duration) {
	t.Helper()
	// What a write adds to an object, as its version, is not in what is measured before;
	// and the last write may go beyond, as long as there is room when it begins.
	most := store.PeerWriteBurst + int(store.PeerWriteBytes*took.Seconds()) + 256*c.writes + c.bytes/max(c.writes, 1)
	t.Logf("%d writes, %d bytes in %s; the budget has %d", c.writes, c.bytes, took, most)
	if c.bytes > most {
		t.Errorf("%d writes of %d bytes in %s, want at most %d", c.writes, c.bytes, took, most)
	}
}

// tunnelTest is a peer with a tunnel, whose exposure the test sets.
type tunnelTest struct {
	*peersTest
	counts  *countingClient
	exposed []allow.Exposed
}

func newTunnelTest(t *testing.T) *tunnelTest {
	t.Helper()
	milan := peertest.NewOther(t, "milan")
	fc := peertest.TrustedAs("milan", milan)
	fc.Status.Network = &v1alpha1.PeerNetwork{
		Prefixes: []string{"10.0.0.0/16"}, Gateways: []v1alpha1.Gateway{{Name: "n1", PublicKey: "k", OverlayAddress: "fd00::1"}},
		Aliases: []v1alpha1.PrefixAlias{{Prefix: "10.0.0.0/16", Alias: "10.250.0.0/16"}},
	}
	tt := &tunnelTest{peersTest: newPeersTest(t, fc, peertest.ContractWith(milan, "c-1", v1alpha1.ContractConsumer))}
	tt.counts = &countingClient{Client: tt.Client}
	tt.Client = tt.counts
	tt.States.Budget = &store.WriteBudget{Now: tt.clock.Now}
	tt.AliasPool = []netip.Prefix{prefix("10.240.0.0/15")}
	tt.Exposed = func(context.Context, peering.ClusterID) ([]allow.Exposed, error) { return tt.exposed, nil }
	return tt
}

func (tt *tunnelTest) allow(t *testing.T) []v1alpha1.Exposure {
	t.Helper()
	var out v1alpha1.Tunnel
	if err := tt.Client.Get(t.Context(), client.ObjectKey{Name: "milan"}, &out); err != nil {
		t.Fatal(err)
	}
	return out.Spec.Allow
}

// sourced is a namespace with a Service that is open to some addresses of the peer.
func sourced(namespace string, from ...netip.Addr) allow.Exposed {
	return allow.Exposed{Contract: "c-1", Namespace: namespace, From: from, To: []allow.Destination{
		{Addr: netip.MustParseAddr("10.0.0.7"), Port: v1alpha1.DestinationPort{Protocol: "TCP", Port: 80}},
	}}
}

func addressesFrom(a netip.Addr, n int) []netip.Addr {
	out := make([]netip.Addr, 0, n)
	for range n {
		out, a = append(out, a), a.Next()
	}
	return out
}

// A provider whose pods' addresses never stay the same has the Tunnel written within its
// budget, whatever closes by that closes at once, and in the end what is open is right.
func TestATunnelIsWrittenWithinItsPeersBudget(t *testing.T) {
	t.Parallel()
	tt := newTunnelTest(t)
	many := addressesFrom(netip.MustParseAddr("fd00:1111:2222:3333:4444:5555:6666:0"), 2000)
	const step, took = 500 * time.Millisecond, time.Minute
	for i := range int(took / step) {
		last := netip.AddrFrom4([4]byte{10, 240, byte(i >> 8), byte(i)})
		tt.exposed = []allow.Exposed{sourced("shop", append(slices.Clone(many[i:]), last)...), sourced("bank", last)}
		tt.look(t, "milan")
		want, _ := allow.Plan(tt.exposed, nil)
		if got := tt.allow(t); !cmp.Equal(allow.Common(got, want), got, cmpopts.EquateEmpty()) {
			t.Fatalf("reconciliation %d leaves open what has to close", i)
		}
		tt.clock.Pass(step)
	}
	tt.counts.withinBudget(t, took)
	for range 60 {
		tt.clock.Pass(time.Second)
		tt.look(t, "milan")
	}
	want, _ := allow.Plan(tt.exposed, nil)
	if got := tt.allow(t); !cmp.Equal(got, want) {
		t.Errorf("in the end %d namespaces are open, not as they should be", len(got))
	}
}

// What opens waits until it can be written, and what closes does not wait for that.
func TestOpeningWaitsAndClosingDoesNot(t *testing.T) {
	t.Parallel()
	tt := newTunnelTest(t)
	addr := netip.MustParseAddr
	look := func() time.Duration {
		t.Helper()
		result, err := tt.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "milan"}})
		if err != nil {
			t.Fatal(err)
		}
		return result.RequeueAfter
	}
	is := func(when string, want ...allow.Exposed) {
		t.Helper()
		plan, _ := allow.Plan(want, nil)
		if diff := cmp.Diff(plan, tt.allow(t), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s open is (-want +got):\n%s", when, diff)
		}
	}
	tt.exposed = []allow.Exposed{sourced("shop", addr("10.240.0.1"), addr("10.240.0.2"))}
	look()
	is("the first time", tt.exposed...)
	tt.exposed = []allow.Exposed{sourced("shop", addr("10.240.0.2"), addr("10.240.0.3"))}
	if again := look(); again <= 0 || again > tunnelPause {
		t.Errorf("what waits is requeued after %s", again)
	}
	is("at once what closes is closed:", sourced("shop", addr("10.240.0.2")))
	tt.clock.Pass(tunnelPause)
	look()
	is("after the pause", tt.exposed...)

	// Without budget all of a namespace in which something closes is closed.
	tt.clock.Pass(tunnelPause)
	tt.exposed = []allow.Exposed{sourced("shop", addr("10.240.0.2"), addr("10.240.0.3")), sourced("bank", addressesFrom(addr("10.241.0.1"), 1000)...)}
	look()
	is("with another namespace", tt.exposed...)
	peer := peering.ClusterID(peertest.PeerCalled(t, tt.Client, "milan").Spec.ClusterID)
	for tt.States.Budget.TakeBytes(peer, 1<<10) == nil {
	}
	tt.exposed[1] = sourced("bank", addressesFrom(addr("10.241.0.2"), 999)...)
	look()
	if got := tt.allow(t); len(got) != 1 || got[0].Namespace != "shop" {
		t.Errorf("without budget %+v is open, want the namespace in which nothing closes", got)
	}
	tt.clock.Pass(time.Minute)
	look()
	is("once there is room again", tt.exposed...)
}

// While many pods end, a Tunnel is written a few times a second and not for each of them, and soon has none of them.
func TestPodsThatEndTogetherCloseTogether(t *testing.T) {
	t.Parallel()
	tt := newTunnelTest(t)
	many := addressesFrom(netip.MustParseAddr("10.240.0.1"), 200)
	tt.exposed = []allow.Exposed{sourced("shop", many...)}
	tt.look(t, "milan")
	writes, before := 0, tt.allow(t)
	for i := range 95 {
		tt.exposed = []allow.Exposed{sourced("shop", many[i+1:]...)}
		tt.look(t, "milan")
		if now := tt.allow(t); !cmp.Equal(now, before) {
			writes, before = writes+1, now
		}
		tt.clock.Pass(10 * time.Millisecond)
	}
	if writes < 3 || writes > 4 {
		t.Errorf("written %d times while 95 pods end in a second, want 3 or 4", writes)
	}
	result, err := tt.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "milan"}})
	if err != nil || result.RequeueAfter > closePause {
		t.Errorf("what is still to close is requeued after %s: %v", result.RequeueAfter, err)
	}
	tt.clock.Pass(closePause)
	tt.look(t, "milan")
	want, _ := allow.Plan(tt.exposed, nil)
	if diff := cmp.Diff(want, tt.allow(t)); diff != "" {
		t.Errorf("open is (-want +got):\n%s", diff)
	}
}

// What the API server does not take opens nothing, and keeps nothing open.
func TestATunnelThatIsRefusedClosesWhatIsToBeClosed(t *testing.T) {
	t.Parallel()
	tt := newTunnelTest(t)
	addr := netip.MustParseAddr
	tt.exposed = []allow.Exposed{sourced("shop", addr("10.240.0.1")), sourced("bank", addr("10.240.0.2"))}
	tt.look(t, "milan")
	busy := true
	tt.counts.refuse = func(o client.Object) error {
		if tun, ok := o.(*v1alpha1.Tunnel); ok && slices.ContainsFunc(tun.Spec.Allow, func(e v1alpha1.Exposure) bool { return e.Namespace == "bad" }) {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "Tunnel"}, "milan", nil)
		} else if ok && busy {
			busy = false
			return apierrors.NewConflict(schema.GroupResource{Resource: "tunnels"}, "milan", errors.New("another client wrote"))
		}
		return nil
	}
	tt.clock.Pass(time.Minute)
	tt.exposed = []allow.Exposed{sourced("bad", addr("10.240.0.3")), sourced("shop", addr("10.240.0.1"))}
	if _, err := tt.Reconcile(t.Context(), ctrl.Request{NamespacedName: client.ObjectKey{Name: "milan"}}); !apierrors.IsConflict(err) {
		t.Errorf("that closing failed is not tried again: %v", err)
	}
	tt.look(t, "milan")
	want, _ := allow.Plan(tt.exposed[1:], nil)
	if diff := cmp.Diff(want, tt.allow(t)); diff != "" {
		t.Errorf("open is (-want +got):\n%s", diff)
	}
}

// What is in use of a contract changes all the time, in an object that is large: it is
// written now and then, within the peer's budget, and the last of it in the end.
func TestUseIsWrittenWithinThePeersBudget(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	c := p.stored(t, p.terms(t, nil), p.provider)
	metav1.SetMetaDataAnnotation(&c.ObjectMeta, "large", strings.Repeat("x", 600<<10))
	b := newBench(t, p.provider, c, foreign("peer", p.consumer))
	counts := &countingClient{Client: b.client}
	b.Client = counts
	const step, took = time.Second, 75 * time.Second
	began := b.clock
	for i := 0; b.clock.Sub(began) < took; i++ {
		b.offloaded.used, b.offloaded.pods = amountsOf("cpu", []string{"1", "2"}[i%2]), 1+i%2
		b.look(t)
		b.clock = b.clock.Add(step)
	}
	counts.withinBudget(t, took)
	b.offloaded.used, b.offloaded.pods = amountsOf("cpu", "3"), 7
	b.clock = b.clock.Add(time.Minute)
	if got := b.look(t); got.Status.Pods != 7 {
		t.Errorf("in the end %d pods are recorded, want 7", got.Status.Pods)
	}
}

// A peer that makes its ForeignCluster large and then comes and goes has its conditions
// written within its budget, and right in the end.
func TestConditionsOfAPeerThatComesAndGoesAreWithinItsBudget(t *testing.T) {
	t.Parallel()
	milan := peertest.NewOther(t, "milan")
	fc := peertest.TrustedAs("milan", milan)
	for i := range 256 {
		fc.Status.Contracts = append(fc.Status.Contracts, v1alpha1.PeerContract{ID: fmt.Sprint("x", i), Phase: "Active", Message: strings.Repeat("x", maxPeerMessage)})
	}
	pt := newPeersTest(t, fc)
	counts := &countingClient{Client: pt.Client}
	pt.Client = counts
	pt.States.Budget = &store.WriteBudget{Now: pt.clock.Now}
	const step, took = 500 * time.Millisecond, time.Minute
	up := func(is bool) {
		pt.trust.set(milan.ID, trust.Session{Why: "it closed", At: pt.clock.Now()})
		if is {
			pt.trust.set(milan.ID, trust.Session{Up: &trust.SessionInfo{Since: pt.clock.Now()}})
		}
	}
	for i := range int(took / step) {
		up(i%2 == 0)
		pt.look(t, "milan")
		pt.clock.Pass(step)
	}
	counts.withinBudget(t, took)
	up(true)
	pt.clock.Pass(time.Minute)
	pt.look(t, "milan")
	if c := meta.FindStatusCondition(peertest.PeerCalled(t, pt.Client, "milan").Status.Conditions, v1alpha1.ConditionConnected); c == nil || c.Status != metav1.ConditionTrue {
		t.Errorf("in the end it says %+v", c)
	}
}

// A peer whose budget is spent has what follows from it written later; the aliases of its
// prefixes, which this cluster assigns and removes, are written at once.
func TestAliasesDoNotWaitForThePeersBudget(t *testing.T) {
	t.Parallel()
	tt := newTunnelTest(t)
	fc := peertest.PeerCalled(t, tt.Client, "milan")
	id := peering.ClusterID(fc.Spec.ClusterID)
	look := func() v1alpha1.ForeignClusterStatus {
		t.Helper()
		tt.look(t, "milan")
		return peertest.PeerCalled(t, tt.Client, "milan").Status
	}
	spendAll(tt.States.Budget, id)
	got := look()
	if len(got.Aliases) != 1 || got.Aliases[0].Prefix != "10.0.0.0/16" {
		t.Fatalf("the aliases are %v", got.Aliases)
	}
	if len(got.Conditions) > 0 {
		t.Error("its conditions are written though its budget is spent")
	}
	// It was charged: there is room again when that has drained, too.
	tt.clock.Pass(time.Minute)
	if got := look(); len(got.Conditions) == 0 {
		t.Error("its conditions are never written")
	}
	// An administrator denies it.
	spendAll(tt.States.Budget, id)
	fc = peertest.PeerCalled(t, tt.Client, "milan")
	fc.Spec.Decision = v1alpha1.DecisionDenied
	if err := tt.Client.Update(t.Context(), fc); err != nil {
		t.Fatal(err)
	}
	tt.look(t, "milan")
	if got := look(); len(got.Aliases) > 0 || got.Network != nil {
		t.Errorf("it was denied and has the aliases %v", got.Aliases)
	}
}

// What leads nowhere any more translates otherwise, whenever it was released.
func TestAnAliasThatIsReleasedIsAnnounced(t *testing.T) {
	t.Parallel()
	var fc v1alpha1.ForeignCluster
	fc.Status.AliasBlocks = []v1alpha1.AliasBlock{{Alias: "198.19.0.0/31", Addresses: []string{"10.2.0.1", "10.2.0.2"}}}
	before := addressing(&fc)
	fc.Status.AliasBlocks[0].Released = []v1alpha1.ReleasedAlias{{Index: 1, Time: metav1.Now()}}
	released := addressing(&fc)
	fc.Status.AliasBlocks[0].Released[0].Time = metav1.NewTime(time.Now().Add(time.Minute))
	if later := addressing(&fc); before == released || released != later {
		t.Errorf("the digests are %x, %x once it is released, and %x by another time", before, released, later)
	}
}

// What a node reaches otherwise is left out of new aliases, and moves none that stands.
func TestNewAliasesAvoidWhatNodesReachOtherwise(t *testing.T) {
	t.Parallel()
	tt := newTunnelTest(t)
	overlap := func(name, prefix string) {
		n := &v1alpha1.FabricNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		n.Status.Preflight = &v1alpha1.FabricPreflight{Overlaps: []string{prefix}}
		if err := tt.Client.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	is := func() string {
		tt.look(t, "milan")
		return fmt.Sprint(peertest.PeerCalled(t, tt.Client, "milan").Status.Aliases)
	}
	const want = "[{10.0.0.0/16 10.241.0.0/16}]"
	overlap("n1", "10.240.7.0/24")
	if got := is(); got != want {
		t.Errorf("aliases are %s, want %s", got, want)
	}
	overlap("n2", "10.241.3.0/24")
	if got := is(); got != want {
		t.Errorf("with a route that came later they are %s, want %s", got, want)
	}
}

// The callee reads the changed translation from the ForeignCluster.
func TestAddressesAreTranslatedAgainOnceAliasesCanBeRead(t *testing.T) {
	t.Parallel()
	tt := newTunnelTest(t)
	var told []string
	tt.Readdressed = func(peering.ClusterID) {
		told = append(told, fmt.Sprint(peertest.PeerCalled(t, tt.Client, "milan").Status.Aliases))
	}
	tt.look(t, "milan")
	tt.look(t, "milan") // what it wrote
	want := fmt.Sprint(peertest.PeerCalled(t, tt.Client, "milan").Status.Aliases)
	if want == "[]" || len(told) == 0 || told[len(told)-1] != want {
		t.Errorf("aliases are %s, and when it was called they were %v", want, told)
	}
	calls := len(told)
	tt.look(t, "milan")
	if len(told) != calls {
		t.Errorf("called again for nothing: %v", told)
	}
}

// Once a peer is forgotten its path does not count: Services that lead there directly do not any more, and the peers
// through which it is reached are sent that this cluster no longer peers with it.
func TestForgettingAPeerIsAnnouncedAtOnce(t *testing.T) {
	t.Parallel()
	tt := newTunnelTest(t)
	home := peertest.TrustedAs("rome", peertest.NewOther(t, "rome"))
	milan := peertest.PeerCalled(t, tt.Client, "milan")
	home.Spec.Transit = &v1alpha1.Transit{Through: []string{milan.Spec.ClusterID}}
	if err := tt.Client.Create(t.Context(), home); err != nil {
		t.Fatal(err)
	}
	tt.look(t, "milan")
	tt.look(t, "milan")
	milan = peertest.PeerCalled(t, tt.Client, "milan")
	meta.SetStatusCondition(&milan.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionNetwork, Status: metav1.ConditionTrue, Reason: "TunnelUp"})
	if err := tt.Client.Status().Update(t.Context(), milan); err != nil {
		t.Fatal(err)
	}
	var readdressed []peering.ClusterID
	tt.Readdressed = func(id peering.ClusterID) { readdressed = append(readdressed, id) }
	direct := func() []string {
		var all v1alpha1.ForeignClusterList
		if err := tt.Client.List(t.Context(), &all); err != nil {
			t.Fatal(err)
		}
		return transit.Direct(home, all.Items)
	}
	tt.announce(milan)
	if len(readdressed) != 1 || len(direct()) != 1 {
		t.Fatalf("readdressed %v, direct %v", readdressed, direct())
	}
	if err := tt.Client.Delete(t.Context(), milan); err != nil {
		t.Fatal(err)
	}
	milan = peertest.PeerCalled(t, tt.Client, "milan")
	if got := tt.concerned(t.Context(), milan); len(got) != 1 || got[0].Name != "rome" || len(direct()) > 0 {
		t.Errorf("%v are reconciled, and direct are %v", got, direct())
	}
	tt.look(t, "milan")
	if len(readdressed) != 2 || readdressed[1] != peering.ClusterID(milan.Spec.ClusterID) {
		t.Errorf("readdressed %v", readdressed)
	}
}
