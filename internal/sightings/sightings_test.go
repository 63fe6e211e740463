package sightings

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

func lanAt(n int, where string, edit ...func(*v1alpha1.Sighting)) Sighted {
	return Sighted(peertest.LAN(n, where, edit...))
}

func dnsAt(n int, domain string, edit ...func(*v1alpha1.Sighting)) Sighted {
	return Sighted(peertest.DNS(n, domain, edit...))
}

func TestPlanSightings(t *testing.T) {
	t.Parallel()
	self := peertest.SightedID(0)
	decided := peertest.HintOf("c1", peertest.LAN(1, "eth0"))
	decided.Spec.Decision = v1alpha1.DecisionApproved
	written := v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: v1alpha1.ForeignClusterSpec{ClusterID: string(peertest.SightedID(1))}}
	going := peertest.HintOf("c1", peertest.LAN(1, "eth0"))
	going.DeletionTimestamp = &metav1.Time{Time: now}
	for name, tt := range map[string]struct {
		snapshot Snapshot
		expected []string
		all      []v1alpha1.ForeignCluster
		want     string
	}{
		"nothing is found":                               {want: ""},
		"a cluster that is not known is made":            {snapshot: Snapshot{Found: []Sighted{lanAt(1, "eth0")}}, want: "make c1 LAN/eth0;"},
		"this cluster finds itself":                      {snapshot: Snapshot{Found: []Sighted{lanAt(0, "eth0")}}, want: ""},
		"one without an endpoint is ignored":             {snapshot: Snapshot{Found: []Sighted{lanAt(1, "eth0", func(s *v1alpha1.Sighting) { s.Endpoints = nil })}}, want: ""},
		"a malformed name is left out":                   {snapshot: Snapshot{Found: []Sighted{lanAt(1, "eth0", func(s *v1alpha1.Sighting) { s.Name = "Not A Label" })}}, want: "make  LAN/eth0;"},
		"an expected cluster comes first":                {snapshot: Snapshot{Found: []Sighted{lanAt(1, "eth0"), lanAt(2, "eth0"), dnsAt(2, "example.com"), lanAt(3, "eth0")}}, expected: []string{string(peertest.SightedID(3))}, want: "make c3 LAN/eth0;make c2 LAN/eth0 DNS/example.com;make c1 LAN/eth0;"},
		"two places make one":                            {snapshot: Snapshot{Found: []Sighted{dnsAt(1, "example.com"), lanAt(1, "eth0")}}, want: "make c1 LAN/eth0 DNS/example.com;"},
		"two names at one place are one":                 {snapshot: Snapshot{Found: []Sighted{lanAt(1, "eth0"), lanAt(1, "eth0", func(s *v1alpha1.Sighting) { s.Name = "z" })}}, want: "make c1 LAN/eth0;"},
		"what is known already needs nothing":            {snapshot: Snapshot{Found: []Sighted{lanAt(1, "eth0")}}, all: []v1alpha1.ForeignCluster{peertest.HintOf("c1", peertest.LAN(1, "eth0"))}, want: ""},
		"what is not found any more goes":                {all: []v1alpha1.ForeignCluster{peertest.HintOf("c1", peertest.LAN(1, "eth0"))}, want: "remove c1;"},
		"unless the place was not read yet":              {snapshot: Snapshot{Places: map[Place]bool{{v1alpha1.SourceLAN, "eth0", "n1"}: true}}, all: []v1alpha1.ForeignCluster{peertest.HintOf("c1", peertest.LAN(1, "eth0"))}, want: ""},
		"or a domain listed it a moment ago":             {snapshot: Snapshot{Places: map[Place]bool{{v1alpha1.SourceDNS, "example.com", ""}: false}, missing: func(lastSeen) bool { return false }}, all: []v1alpha1.ForeignCluster{peertest.HintOf("c1", peertest.DNS(1, "example.com"))}, want: ""},
		"a cluster that leaves a LAN is gone at once":    {snapshot: Snapshot{Places: map[Place]bool{{v1alpha1.SourceLAN, "eth0", "n1"}: false}, missing: func(lastSeen) bool { return false }}, all: []v1alpha1.ForeignCluster{peertest.HintOf("c1", peertest.LAN(1, "eth0"))}, want: "remove c1;"},
		"unless its hint is new":                         {snapshot: Snapshot{Places: map[Place]bool{{v1alpha1.SourceLAN, "eth0", "n1"}: false}, young: func(id peering.ClusterID) bool { return id == peertest.SightedID(1) }}, all: []v1alpha1.ForeignCluster{peertest.HintOf("c1", peertest.LAN(1, "eth0")), peertest.HintOf("c2", peertest.LAN(2, "eth0"))}, want: "remove c2;"},
		"and the place is no longer browsed":             {snapshot: Snapshot{young: func(peering.ClusterID) bool { return true }}, all: []v1alpha1.ForeignCluster{peertest.HintOf("c1", peertest.LAN(1, "eth0"))}, want: "remove c1;"},
		"not where it is no longer browsed":              {snapshot: Snapshot{missing: func(lastSeen) bool { return false }}, all: []v1alpha1.ForeignCluster{peertest.HintOf("c1", peertest.LAN(1, "eth0"))}, want: "remove c1;"},
		"a cluster with a decision stays":                {all: []v1alpha1.ForeignCluster{decided}, want: "change c1;"},
		"an object that is being deleted is not changed": {snapshot: Snapshot{Found: []Sighted{lanAt(1, "eth0"), lanAt(2, "eth0")}}, all: []v1alpha1.ForeignCluster{going}, want: "make c2 LAN/eth0;"},
		"a cluster that was written gets its endpoints":  {snapshot: Snapshot{Found: []Sighted{lanAt(1, "eth0")}}, all: []v1alpha1.ForeignCluster{written}, want: "change mine LAN/eth0;"},
		"a trusted peer keeps its own endpoints":         {snapshot: Snapshot{Found: []Sighted{lanAt(1, "eth0")}}, all: []v1alpha1.ForeignCluster{peertest.TrustedPeer("office", 1, "198.51.100.1:7443")}, want: "change office LAN/eth0;"},
		"a hint that moves gets its new endpoints":       {snapshot: Snapshot{Found: []Sighted{lanAt(1, "eth0", func(s *v1alpha1.Sighting) { s.Endpoints = []string{"192.0.2.99:7443"} })}}, all: []v1alpha1.ForeignCluster{peertest.HintOf("c1", peertest.LAN(1, "eth0"))}, want: "change c1 LAN/eth0 at 192.0.2.99:7443;"},
		"the name of a trusted peer is an impostor's":    {snapshot: Snapshot{Found: []Sighted{lanAt(1, "eth0")}}, all: []v1alpha1.ForeignCluster{peertest.HintOf("c1-x", peertest.LAN(1, "eth0")), peertest.TrustedPeer("c1", 9)}, want: "change c1-x LAN/eth0 NameOfAnother;"},
		"so is its endpoint":                             {snapshot: Snapshot{Found: []Sighted{lanAt(1, "eth0")}}, all: []v1alpha1.ForeignCluster{peertest.HintOf("c1", peertest.LAN(1, "eth0")), peertest.TrustedPeer("office", 9, "192.0.2.2:7443")}, want: "change c1 LAN/eth0 EndpointOfAnother;"},
		"seen again within minutes is not written":       {snapshot: Snapshot{Found: []Sighted{lanAt(1, "eth0", func(s *v1alpha1.Sighting) { s.LastSeenTime = metav1.NewTime(now.Add(seenPace - 1)) })}}, all: []v1alpha1.ForeignCluster{peertest.HintOf("c1", peertest.LAN(1, "eth0"))}, want: ""},
		"seen again after a while is written":            {snapshot: Snapshot{Found: []Sighted{lanAt(1, "eth0", func(s *v1alpha1.Sighting) { s.LastSeenTime = metav1.NewTime(now.Add(seenPace)) })}}, all: []v1alpha1.ForeignCluster{peertest.HintOf("c1", peertest.LAN(1, "eth0"))}, want: "change c1 LAN/eth0;"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := planText(planSightings(self, tt.expected, tt.snapshot, tt.all)); got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func planText(p sightingPlan) string {
	var out strings.Builder
	places := func(all []v1alpha1.Sighting) {
		for _, s := range all {
			fmt.Fprintf(&out, " %s/%s", s.Source, s.Location)
		}
	}
	for _, h := range p.make {
		fmt.Fprintf(&out, "make %s", h.name)
		places(h.sightings)
		out.WriteString(";")
	}
	for name, c := range p.change {
		fmt.Fprintf(&out, "change %s", name)
		places(c.sightings)
		if c.endpoints != nil {
			fmt.Fprintf(&out, " at %s", strings.Join(c.endpoints, ","))
		}
		if c.impostor != nil {
			fmt.Fprintf(&out, " %s", c.impostor.Reason)
		}
		out.WriteString(";")
	}
	for _, name := range p.remove {
		fmt.Fprintf(&out, "remove %s;", name)
	}
	return out.String()
}

// A host that announces another's ID under a name that comes first replaces none of its endpoints.
func TestNamesAtOnePlaceAreMerged(t *testing.T) {
	t.Parallel()
	stranger := dnsAt(1, "example.com", func(s *v1alpha1.Sighting) { s.Name, s.Endpoints = "", []string{"192.0.2.66:7443", "192.0.2.67:7443"} })
	got := gather(peertest.SightedID(0), []Sighted{dnsAt(1, "example.com"), stranger, lanAt(1, "eth0")})[peertest.SightedID(1)]
	if len(got) != 2 || got[1].Name != "c1" || !slices.Equal(got[1].Endpoints, []string{"192.0.2.66:7443", "192.0.2.2:7443", "192.0.2.67:7443"}) {
		t.Errorf("it is %+v", got)
	}
}

// A network that announces a hundred thousand names fills its own share, and clusters found
// elsewhere have room.
func TestAFloodOfHintsIsBounded(t *testing.T) {
	t.Parallel()
	var snapshot Snapshot
	for n := range 100_000 {
		snapshot.Found = append(snapshot.Found, lanAt(n+10, "eth0"))
	}
	snapshot.Found = append(snapshot.Found, lanAt(1, "eth1"), dnsAt(2, "example.com"))
	plan := planSightings(peertest.SightedID(0), nil, snapshot, nil)
	if got, want := len(plan.make), maxHintsOfPlace+2; got != want {
		t.Errorf("%d are made, want %d", got, want)
	}
	if got, want := plan.left, 100_000-maxHintsOfPlace; got != want {
		t.Errorf("%d are left out, want %d", got, want)
	}
	for _, n := range []int{1, 2} {
		if !slices.ContainsFunc(plan.make, func(h newHint) bool { return h.id == peertest.SightedID(n) }) {
			t.Errorf("cluster %d, which is found elsewhere, is left out", n)
		}
	}
	// A known cluster keeps its place.
	known := []v1alpha1.ForeignCluster{peertest.HintOf("c9", peertest.LAN(100_009, "eth0"))}
	plan = planSightings(peertest.SightedID(0), nil, snapshot, known)
	if len(plan.change)+len(plan.remove) != 0 || len(plan.make) != maxHintsOfPlace+1 {
		t.Errorf("%d changed, %d removed, %d made", len(plan.change), len(plan.remove), len(plan.make))
	}
}

// Whom a policy lists takes no place of others, nor needs one.
func TestExpectedClustersHaveTheirOwnPlaces(t *testing.T) {
	t.Parallel()
	var snapshot Snapshot
	var expected []string
	for n := range 3 * maxHints {
		snapshot.Found = append(snapshot.Found, lanAt(n+10, "eth0"))
		if n >= 2*maxHints {
			expected = append(expected, string(peertest.SightedID(n+10)))
		}
	}
	slices.Sort(expected)
	plan := planSightings(peertest.SightedID(0), expected, snapshot, nil)
	if plan.expected != maxHints || len(plan.make) != maxHints+maxHintsOfPlace {
		t.Errorf("%d are made, of which %d were expected", len(plan.make), plan.expected)
	}
	var all []v1alpha1.ForeignCluster
	for i, h := range plan.make {
		if isExpected(expected, h.id) != (i < plan.expected) {
			t.Fatalf("%d is %s", i, h.id)
		}
		all = append(all, peertest.HintOf(fmt.Sprint("c", i), peertest.Sighted{ID: h.id, Sighting: h.sightings[0]}))
	}
	snapshot.Found = append(snapshot.Found, lanAt(1, "eth0"))
	if plan := planSightings(peertest.SightedID(0), expected, snapshot, all); len(plan.make)+len(plan.remove) != 0 {
		t.Errorf("then %d are made, %d removed", len(plan.make), len(plan.remove))
	}
	expected = append(expected, string(peertest.SightedID(1)))
	slices.Sort(expected)
	if plan := planSightings(peertest.SightedID(0), expected, snapshot, all); len(plan.make) != 1 || plan.make[0].id != peertest.SightedID(1) {
		t.Errorf("one more that is expected is not made: %d are", len(plan.make))
	}
}

func TestExpectedAreThePeersThatPoliciesName(t *testing.T) {
	t.Parallel()
	policy := func(name string, edit func(*v1alpha1.PeeringPolicy)) v1alpha1.PeeringPolicy {
		p := v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		edit(&p)
		return p
	}
	lists := func(all ...int) func(*v1alpha1.PeeringPolicy) {
		return func(p *v1alpha1.PeeringPolicy) {
			p.Spec.Automatic = &v1alpha1.AutomaticPeering{}
			for _, n := range all {
				p.Spec.Automatic.ClusterIDs = append(p.Spec.Automatic.ClusterIDs, string(peertest.SightedID(n)))
			}
		}
	}
	numbers := func(from, to int) (out []int) {
		for n := from; n < to; n++ {
			out = append(out, n)
		}
		return out
	}
	byID := numbers(0, maxExpected)
	slices.SortFunc(byID, func(a, b int) int {
		return strings.Compare(string(peertest.SightedID(a)), string(peertest.SightedID(b)))
	})
	edited := func(fc v1alpha1.ForeignCluster, edit func(*v1alpha1.ForeignCluster)) v1alpha1.ForeignCluster {
		edit(&fc)
		return fc
	}
	going := policy("going", lists(9))
	going.DeletionTimestamp = &metav1.Time{Time: now}
	var peers []v1alpha1.ForeignCluster
	var used []v1alpha1.ForeignCluster
	for n := range maxExpected {
		peers = append(peers, peertest.TrustedPeer(fmt.Sprint("a", n), n))
		used = append(used, edited(peertest.TrustedPeer(fmt.Sprint("a", n), n), func(fc *v1alpha1.ForeignCluster) {
			fc.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager}
			store.ByPolicy(fc, "p", "FirstUse")
		}))
	}
	for name, tt := range map[string]struct {
		policies []v1alpha1.PeeringPolicy
		all      []v1alpha1.ForeignCluster
		want     []int
	}{
		"no cluster":                             {},
		"whom policies list":                     {policies: []v1alpha1.PeeringPolicy{policy("a", lists(2, 1)), policy("b", lists(1, 3)), policy("c", func(*v1alpha1.PeeringPolicy) {})}, want: []int{1, 2, 3}},
		"none of a policy that is being deleted": {policies: []v1alpha1.PeeringPolicy{going}},
		"a trusted cluster":                      {all: []v1alpha1.ForeignCluster{peertest.TrustedPeer("office", 1)}, want: []int{1}},
		"a cluster that was written":             {all: []v1alpha1.ForeignCluster{{Spec: v1alpha1.ForeignClusterSpec{ClusterID: string(peertest.SightedID(1))}}}, want: []int{1}},
		"an approved cluster, not a denied one":  {all: []v1alpha1.ForeignCluster{edited(peertest.HintOf("c1", peertest.LAN(1, "eth0")), func(fc *v1alpha1.ForeignCluster) { fc.Spec.Decision = v1alpha1.DecisionApproved }), edited(peertest.TrustedPeer("c2", 2), func(fc *v1alpha1.ForeignCluster) { fc.Spec.Decision = v1alpha1.DecisionDenied })}, want: []int{1}},
		"not one that was only found":            {all: []v1alpha1.ForeignCluster{peertest.HintOf("c1", peertest.LAN(1, "eth0"))}},
		"not one that only introduced itself": {all: []v1alpha1.ForeignCluster{edited(peertest.HintOf("c1", peertest.LAN(1, "eth0")), func(fc *v1alpha1.ForeignCluster) {
			delete(fc.Annotations, v1alpha1.AnnotationDiscovered)
			fc.Status.Introduction = &v1alpha1.Introduction{}
		})}},
		"not one without an ID":           {all: []v1alpha1.ForeignCluster{{}}},
		"of too many those listed":        {policies: []v1alpha1.PeeringPolicy{policy("a", lists(numbers(10_000, 10_000+maxExpected)...))}, all: peers, want: numbers(10_000, 10_000+maxExpected)},
		"people's peers before policies'": {all: append(used, peertest.TrustedPeer("z", 10_000)), want: append(byID[:maxExpected-1], 10_000)},
		"no more than there are":          {all: append(peers, peertest.TrustedPeer("z", 10_000)), want: numbers(0, maxExpected)},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var want []string
			for _, n := range tt.want {
				want = append(want, string(peertest.SightedID(n)))
			}
			slices.Sort(want)
			if d := cmp.Diff(want, Expected(tt.policies, tt.all), cmpopts.EquateEmpty()); d != "" {
				t.Error(d)
			}
		})
	}
}

func TestHintsComeAndGo(t *testing.T) {
	t.Parallel()
	c := peertest.Indexed(fake.NewClientBuilder().WithScheme(peertest.Scheme(t)).WithStatusSubresource(&v1alpha1.ForeignCluster{}))
	office := peertest.TrustedPeer("c3", 3, "198.51.100.3:7443")
	if err := c.Create(t.Context(), &office); err != nil {
		t.Fatal(err)
	}
	recorder := events.NewFakeRecorder(16)
	var snapshot Snapshot
	clock := now
	at := func() time.Time { return clock }
	r := &Sightings{
		Client: c, Self: peertest.SightedID(0), Events: recorder, Log: slog.New(slog.DiscardHandler), Now: at, Budget: &store.WriteBudget{Now: at},
		Snapshot: func() Snapshot { return snapshot },
	}
	reconcile := func() map[string]v1alpha1.ForeignCluster {
		t.Helper()
		clock = clock.Add(changePace)
		if err := r.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		var list v1alpha1.ForeignClusterList
		if err := c.List(t.Context(), &list); err != nil {
			t.Fatal(err)
		}
		out := map[string]v1alpha1.ForeignCluster{}
		for _, fc := range list.Items {
			out[fc.Name] = fc
		}
		return out
	}

	snapshot.Found = []Sighted{lanAt(1, "eth0"), dnsAt(2, "example.com"), lanAt(3, "eth0")}
	all := reconcile()
	if len(all) != 3 {
		t.Fatalf("there are %d", len(all))
	}
	named := func(n int) string { return fmt.Sprintf("c%d-%s", n, peertest.SightedID(n).Short()) }
	one, two, three := all[named(1)], all[named(2)], all["c3"]
	if one.Status.Source != v1alpha1.SourceLAN || two.Status.Source != v1alpha1.SourceDNS || !slices.Equal(one.Spec.Endpoints, []string{"192.0.2.2:7443"}) {
		t.Errorf("%+v %+v", one, two)
	}
	if one.Spec.TrustBundle != "" || one.Spec.Decision != "" {
		t.Error("what was found is trusted")
	}
	if three.Status.Source != v1alpha1.SourceToken || !slices.Equal(three.Spec.Endpoints, []string{"198.51.100.3:7443"}) || len(three.Status.Sightings) != 1 {
		t.Errorf("what was known changed: %+v", three)
	}

	// It moves; another takes the name of a peer that is trusted.
	snapshot.Found = []Sighted{lanAt(1, "eth0", func(s *v1alpha1.Sighting) { s.Endpoints = []string{"192.0.2.77:7443"} }), lanAt(4, "eth0", func(s *v1alpha1.Sighting) { s.Name = "c3" })}
	reconcile()
	all = reconcile()
	if d := cmp.Diff([]string{"192.0.2.77:7443"}, all[named(1)].Spec.Endpoints); d != "" {
		t.Error(d)
	}
	if _, there := all[named(2)]; there {
		t.Error("what is not found any more is there")
	}
	liar := all["c3-"+peertest.SightedID(4).Short()]
	if con := meta.FindStatusCondition(liar.Status.Conditions, v1alpha1.ConditionImpostor); con == nil || con.Reason != "NameOfAnother" {
		t.Errorf("the impostor has %+v", liar.Status.Conditions)
	}
	if n := len(recorder.Events); n != 1 {
		t.Errorf("there were %d events", n)
	}

	// An administrator decides about one: it stays, with the endpoints that the administrator wrote.
	fc := all[named(1)]
	fc.Spec.Decision = v1alpha1.DecisionDenied
	if err := c.Update(t.Context(), &fc); err != nil {
		t.Fatal(err)
	}
	snapshot.Found = nil
	all = reconcile()
	if _, there := all[named(1)]; !there || len(all) != 2 {
		t.Errorf("there are %d, and the one that was decided about is there: %t", len(all), there)
	}
	if err := c.Get(t.Context(), client.ObjectKey{Name: "c3"}, &three); err != nil || three.Spec.TrustBundle == "" || len(three.Status.Sightings) != 0 {
		t.Errorf("the peer is %+v, %v", three, err)
	}
}

// An invented cluster with the name and the beginning of the ID of another does not take its
// place.
func TestIDWithTheSamePrefixGetsItsOwnName(t *testing.T) {
	t.Parallel()
	c := peertest.Indexed(fake.NewClientBuilder().WithScheme(peertest.Scheme(t)).WithStatusSubresource(&v1alpha1.ForeignCluster{}))
	r := &Sightings{
		Client: c, Self: peering.ClusterID(strings.Repeat("b", 32)), Events: events.NewFakeRecorder(16), Log: slog.New(slog.DiscardHandler),
		Now: func() time.Time { return now }, Budget: &store.WriteBudget{Now: func() time.Time { return now }},
	}
	named := func(s *v1alpha1.Sighting) { s.Name = "office" }
	for n := range 3 { // all begin with the same letters
		r.Snapshot = func() Snapshot {
			return Snapshot{Found: []Sighted{lanAt(0, "eth0", named), lanAt(1, "eth0", named), lanAt(2, "eth0", named)}[:n+1]}
		}
		if err := r.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	var list v1alpha1.ForeignClusterList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, fc := range list.Items {
		got[fc.Name+" "+fc.Spec.ClusterID] = true
	}
	full := func(n int) string { return fmt.Sprintf("office-%s %s", peertest.SightedID(n), peertest.SightedID(n)) }
	want := map[string]bool{"office-aaaaaaaa " + string(peertest.SightedID(0)): true, full(1): true, full(2): true}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// What a network announces of a cluster is written once a minute, even if it changes each second,
// and all that is found shares the budget as one peer.
func TestSightingsAreWrittenOnceAMinute(t *testing.T) {
	t.Parallel()
	writes := 0
	c := interceptor.NewClient(peertest.Indexed(fake.NewClientBuilder().WithScheme(peertest.Scheme(t)).WithStatusSubresource(&v1alpha1.ForeignCluster{})), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			writes++
			return c.Patch(ctx, o, patch, opts...)
		},
	})
	clock := now
	at := func() time.Time { return clock }
	budget := &store.WriteBudget{Now: at}
	n := 0
	r := &Sightings{
		Client: c, Self: peertest.SightedID(0), Events: events.NewFakeRecorder(16), Log: slog.New(slog.DiscardHandler), Now: at, Budget: budget,
		Snapshot: func() Snapshot {
			n++
			return Snapshot{Found: []Sighted{lanAt(1, "eth0", func(s *v1alpha1.Sighting) { s.Endpoints = []string{fmt.Sprintf("192.0.2.%d:7443", n%250+1)} })}}
		},
	}
	for range 600 { // ten minutes
		if err := r.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		clock = clock.Add(time.Second)
	}
	if writes < 9 || writes > 11 {
		t.Errorf("it was written %d times in ten minutes", writes)
	}
	// While there is no room for hints none is written, and what a peer sends is.
	before := writes
	for budget.TakeBytes(store.Hints, 1<<20) == nil {
	}
	clock = clock.Add(changePace)
	for budget.TakeBytes(store.Hints, 1<<10) == nil {
	}
	if err := r.reconcile(t.Context()); err != nil {
		t.Fatal(err)
	}
	if writes != before {
		t.Error("it was written beyond the budget")
	}
	if err := budget.TakeBytes(peertest.SightedID(9), 64<<10); err != nil {
		t.Errorf("a peer's word waits for hints: %v", err)
	}
}

// A LAN that announces other clusters each second, for ever, costs a few writes a second, and
// what is found there, or elsewhere, is still written.
func TestFlappingLANCostsFewWrites(t *testing.T) {
	t.Parallel()
	writes := 0
	c := interceptor.NewClient(peertest.Indexed(fake.NewClientBuilder().WithScheme(peertest.Scheme(t)).WithStatusSubresource(&v1alpha1.ForeignCluster{})), interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			writes += 2 // and its status
			return c.Create(ctx, o, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			writes++
			return c.Delete(ctx, o, opts...)
		},
	})
	office := peertest.TrustedPeer("office", 1, "198.51.100.3:7443")
	if err := c.Create(t.Context(), &office); err != nil {
		t.Fatal(err)
	}
	writes = 0
	clock := now
	at := func() time.Time { return clock }
	second := 0
	r := &Sightings{
		Client: c, Self: peertest.SightedID(0), Events: events.NewFakeRecorder(16), Log: slog.New(slog.DiscardHandler), Now: at, Budget: &store.WriteBudget{Now: at},
		Snapshot: func() Snapshot {
			snapshot := Snapshot{Places: map[Place]bool{{v1alpha1.SourceLAN, "eth0", "n1"}: false, {v1alpha1.SourceLAN, "eth1", "n1"}: false}}
			for n := range hintsAtOnce {
				snapshot.Found = append(snapshot.Found, lanAt(10+second*hintsAtOnce+n, "eth0"))
			}
			if second >= 45 { // an impostor and a neighbour
				snapshot.Found = append(snapshot.Found, lanAt(999_999, "eth1", func(s *v1alpha1.Sighting) { s.Name = "office" }))
			}
			return snapshot
		},
	}
	const seconds = 90
	for second = range seconds {
		if err := r.reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		clock = clock.Add(time.Second)
	}
	if most := 3 * (maxHintsOfPlace + seconds*maxHintsOfPlace/60 + 1); writes > most {
		t.Errorf("it was written %d times in %d s, want at most %d", writes, seconds, most)
	}
	var list v1alpha1.ForeignClusterList
	if err := c.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(list.Items, func(fc v1alpha1.ForeignCluster) bool { return fc.Spec.ClusterID == string(peertest.SightedID(999_999)) })
	if i < 0 || meta.FindStatusCondition(list.Items[i].Status.Conditions, v1alpha1.ConditionImpostor) == nil {
		t.Errorf("what was found elsewhere has place %d and no condition", i)
	}
}
