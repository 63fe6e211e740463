package automatic

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/peertest"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
)

func ruleOf(name string, edit func(*v1alpha1.AutomaticPeering)) policyRule {
	rule := policyRule{name: name, revision: "1"}
	edit(&rule.AutomaticPeering)
	return rule
}

func listing(name string, ids ...int) policyRule {
	return ruleOf(name, func(a *v1alpha1.AutomaticPeering) {
		for _, n := range ids {
			a.ClusterIDs = append(a.ClusterIDs, string(peertest.SightedID(n)))
		}
	})
}

func grouping(name, group string) policyRule {
	return ruleOf(name, func(a *v1alpha1.AutomaticPeering) { a.Group = &v1alpha1.PeeringGroup{Name: group} })
}

func firstUse(name string, sources ...v1alpha1.Source) policyRule {
	return ruleOf(name, func(a *v1alpha1.AutomaticPeering) { a.TrustOnFirstUse, a.Sources = true, sources })
}

func changed(fc v1alpha1.ForeignCluster, edit func(*v1alpha1.ForeignCluster)) v1alpha1.ForeignCluster {
	out := fc.DeepCopy()
	edit(out)
	return *out
}

// byPolicy is a ForeignCluster that a policy made.
func byPolicy(name string, n int, policy string, by basis) v1alpha1.ForeignCluster {
	fc := peertest.TrustedPeer(name, n, "192.0.2.1:7443")
	fc.Labels = map[string]string{v1alpha1.LabelManaged: v1alpha1.Manager, v1alpha1.LabelAutomatic: policy}
	fc.Annotations = map[string]string{v1alpha1.AnnotationAutomaticBy: string(by)}
	fc.Spec.Decision, fc.Status.Source = v1alpha1.DecisionApproved, v1alpha1.SourceLAN
	return fc
}

// refusing makes a peer refuse this cluster, since a time ago.
func refusing(ago time.Duration) func(*v1alpha1.ForeignCluster) {
	return func(fc *v1alpha1.ForeignCluster) {
		fc.Status.Conditions = []metav1.Condition{{
			Type: v1alpha1.ConditionTrusted, Status: metav1.ConditionFalse, Reason: trust.ReasonForgottenByPeer,
			LastTransitionTime: metav1.NewTime(now.Add(-ago)),
		}}
	}
}

func TestDenyingOneOfThoseOnFirstUseMakesRoom(t *testing.T) {
	t.Parallel()
	all := []v1alpha1.ForeignCluster{byPolicy("c1", 1, "home", byFirstUse), byPolicy("c2", 2, "home", byFirstUse), byPolicy("c3", 3, "home", byClusterID)}
	all[1].Spec.Decision = v1alpha1.DecisionDenied
	if got := firstUsed(all)["home"]; got != 1 {
		t.Errorf("%d are trusted on first use, want 1", got)
	}
}

// introduced is a cluster that introduced itself.
func introduced(fc v1alpha1.ForeignCluster) v1alpha1.ForeignCluster {
	return changed(fc, func(fc *v1alpha1.ForeignCluster) {
		fc.Status.Introduction = &v1alpha1.Introduction{Bundle: "roots"}
	})
}

// decided is a plan as text.
func decided(p peerPlan) []string {
	var out []string
	for _, d := range p.dial {
		out = append(out, fmt.Sprintf("dial %s by %s of %s at %s", d.fc, d.key.by, d.key.policy, strings.Join(d.endpoints, ",")))
	}
	for _, a := range p.approve {
		out = append(out, fmt.Sprintf("approve %s by %s of %s", a.fc, a.by, a.policy))
	}
	for _, name := range p.letGo {
		out = append(out, "let go "+name)
	}
	for _, id := range p.lift {
		out = append(out, "lift "+string(id))
	}
	slices.Sort(out)
	return out
}

func none(time.Duration) time.Duration { return 0 }

func TestAutomaticPlan(t *testing.T) {
	t.Parallel()
	hint := peertest.HintOf("c1", peertest.LAN(1, "eth0"))
	denied := changed(hint, func(fc *v1alpha1.ForeignCluster) { fc.Spec.Decision = v1alpha1.DecisionDenied })
	impostor := changed(hint, func(fc *v1alpha1.ForeignCluster) {
		meta.SetStatusCondition(&fc.Status.Conditions, store.Condition(v1alpha1.ConditionImpostor, metav1.ConditionTrue, "NameOfAnother", ""))
	})
	written := changed(hint, func(fc *v1alpha1.ForeignCluster) { fc.Labels = nil })
	many := peertest.HintOf("c1", peertest.LAN(1, "eth0"), peertest.LAN(1, "eth1", func(s *v1alpha1.Sighting) { s.Endpoints = []string{"192.0.2.50:1", "192.0.2.51:1"} }), peertest.DNS(1, "x.example", func(s *v1alpha1.Sighting) { s.Endpoints = []string{"192.0.2.60:1"} }))
	const at = "192.0.2.2:7443"
	for name, tt := range map[string]struct {
		rules  []policyRule
		all    []v1alpha1.ForeignCluster
		person []int // forgotten by a person
		policy []int // forgotten by a policy
		gone   bool  // the policy is gone for good
		want   []string
	}{
		"no policy asks":                     {nil, []v1alpha1.ForeignCluster{hint}, nil, nil, true, nil},
		"listed":                             {[]policyRule{listing("home", 1)}, []v1alpha1.ForeignCluster{hint}, nil, nil, true, []string{"dial c1 by ClusterID of home at " + at}},
		"another is listed":                  {[]policyRule{listing("home", 2)}, []v1alpha1.ForeignCluster{hint}, nil, nil, true, nil},
		"a group":                            {[]policyRule{grouping("home", "garage")}, []v1alpha1.ForeignCluster{hint}, nil, nil, true, []string{"dial c1 by Group/garage of home at " + at}},
		"first use":                          {[]policyRule{firstUse("home")}, []v1alpha1.ForeignCluster{hint}, nil, nil, true, []string{"dial c1 by FirstUse of home at " + at}},
		"first use of an impostor":           {[]policyRule{firstUse("home")}, []v1alpha1.ForeignCluster{impostor}, nil, nil, true, nil},
		"first use of one that will be":      {[]policyRule{firstUse("home")}, []v1alpha1.ForeignCluster{hint, peertest.TrustedPeer("x", 2, at)}, nil, nil, true, nil},
		"it did, with another's name":        {[]policyRule{firstUse("home")}, []v1alpha1.ForeignCluster{changed(introduced(hint), func(fc *v1alpha1.ForeignCluster) { fc.Status.Introduction.Name = "X" }), peertest.TrustedPeer("x", 2)}, nil, nil, true, nil},
		"first use where it is not found":    {[]policyRule{firstUse("home", v1alpha1.SourceDNS)}, []v1alpha1.ForeignCluster{hint}, nil, nil, true, nil},
		"an ID proves more than a group":     {[]policyRule{grouping("a", "garage"), listing("home", 1)}, []v1alpha1.ForeignCluster{hint}, nil, nil, true, []string{"dial c1 by ClusterID of home at " + at}},
		"a group proves more than first use": {[]policyRule{firstUse("a"), grouping("home", "garage")}, []v1alpha1.ForeignCluster{hint}, nil, nil, true, []string{"dial c1 by Group/garage of home at " + at}},
		"two endpoints at most": {[]policyRule{ruleOf("home", func(a *v1alpha1.AutomaticPeering) {
			a.ClusterIDs, a.Sources = []string{string(peertest.SightedID(1))}, []v1alpha1.Source{v1alpha1.SourceLAN}
		})}, []v1alpha1.ForeignCluster{many}, nil, nil, true, []string{"dial c1 by ClusterID of home at " + at + ",192.0.2.50:1"}},
		"only those of its sources":        {[]policyRule{firstUse("home", v1alpha1.SourceDNS)}, []v1alpha1.ForeignCluster{many}, nil, nil, true, []string{"dial c1 by FirstUse of home at 192.0.2.60:1"}},
		"denied":                           {[]policyRule{listing("home", 1)}, []v1alpha1.ForeignCluster{denied}, nil, nil, true, nil},
		"written by a person":              {[]policyRule{listing("home", 1)}, []v1alpha1.ForeignCluster{written}, nil, nil, true, nil},
		"trusted otherwise":                {[]policyRule{listing("home", 1)}, []v1alpha1.ForeignCluster{peertest.TrustedPeer("c1", 1)}, nil, nil, true, nil},
		"this cluster":                     {[]policyRule{listing("home", 0)}, []v1alpha1.ForeignCluster{peertest.HintOf("c0", peertest.LAN(0, "eth0"))}, nil, nil, true, nil},
		"forgotten by a person":            {[]policyRule{listing("home", 1), firstUse("x")}, []v1alpha1.ForeignCluster{hint}, []int{1}, nil, true, nil},
		"forgotten by a policy":            {[]policyRule{listing("home", 1)}, []v1alpha1.ForeignCluster{hint}, nil, []int{1}, true, []string{"dial c1 by ClusterID of home at " + at, "lift " + string(peertest.SightedID(1))}},
		"a policy forgot, and it is away":  {[]policyRule{listing("home", 1)}, nil, nil, []int{1}, true, []string{"lift " + string(peertest.SightedID(1))}},
		"it introduced itself":             {[]policyRule{listing("home", 1)}, []v1alpha1.ForeignCluster{introduced(hint)}, nil, nil, true, []string{"approve c1 by ClusterID of home"}},
		"it did, listed and not found":     {[]policyRule{listing("home", 1)}, []v1alpha1.ForeignCluster{introduced(changed(hint, func(fc *v1alpha1.ForeignCluster) { fc.Status.Sightings = nil }))}, nil, nil, true, []string{"approve c1 by ClusterID of home"}},
		"it did, and is not found":         {[]policyRule{firstUse("home")}, []v1alpha1.ForeignCluster{introduced(changed(hint, func(fc *v1alpha1.ForeignCluster) { fc.Status.Sightings = nil }))}, nil, nil, true, nil},
		"it did, by first use":             {[]policyRule{firstUse("home")}, []v1alpha1.ForeignCluster{introduced(hint)}, nil, nil, true, []string{"approve c1 by FirstUse of home"}},
		"it did, and only a group asks":    {[]policyRule{grouping("home", "garage")}, []v1alpha1.ForeignCluster{introduced(hint)}, nil, nil, true, []string{"dial c1 by Group/garage of home at " + at}},
		"it is listed":                     {[]policyRule{listing("home", 1)}, []v1alpha1.ForeignCluster{byPolicy("c1", 1, "home", byClusterID)}, nil, nil, true, nil},
		"not listed any more":              {[]policyRule{listing("home", 2)}, []v1alpha1.ForeignCluster{byPolicy("c1", 1, "home", byClusterID)}, nil, nil, true, []string{"let go c1"}},
		"the group exists":                 {[]policyRule{grouping("home", "garage")}, []v1alpha1.ForeignCluster{byPolicy("c1", 1, "home", groupBasis("garage"))}, nil, nil, true, nil},
		"the group's secret is missing":    {[]policyRule{{name: "home", AutomaticPeering: v1alpha1.AutomaticPeering{Group: &v1alpha1.PeeringGroup{Name: "garage"}}, problem: trust.Attempt{Reason: "SecretMissing"}}}, []v1alpha1.ForeignCluster{byPolicy("c1", 1, "home", groupBasis("garage")), peertest.HintOf("c2", peertest.LAN(2, "eth0"))}, nil, nil, true, nil},
		"the group is another":             {[]policyRule{grouping("home", "office")}, []v1alpha1.ForeignCluster{byPolicy("c1", 1, "home", groupBasis("garage"))}, nil, nil, true, []string{"let go c1"}},
		"no first use any more":            {[]policyRule{listing("home", 2)}, []v1alpha1.ForeignCluster{byPolicy("c1", 1, "home", byFirstUse)}, nil, nil, true, []string{"let go c1"}},
		"the policy is gone":               {nil, []v1alpha1.ForeignCluster{byPolicy("c1", 1, "home", byFirstUse)}, nil, nil, true, []string{"let go c1"}},
		"the policy may come back":         {nil, []v1alpha1.ForeignCluster{byPolicy("c1", 1, "home", byFirstUse)}, nil, nil, false, nil},
		"a person took the label off":      {nil, []v1alpha1.ForeignCluster{changed(byPolicy("c1", 1, "home", byFirstUse), func(fc *v1alpha1.ForeignCluster) { delete(fc.Labels, v1alpha1.LabelAutomatic) })}, nil, nil, true, nil},
		"a person put the label on":        {[]policyRule{listing("home", 2)}, []v1alpha1.ForeignCluster{changed(byPolicy("c1", 1, "home", byFirstUse), func(fc *v1alpha1.ForeignCluster) { delete(fc.Annotations, v1alpha1.AnnotationAutomaticBy) })}, nil, nil, true, nil},
		"a person wrote it, label and all": {nil, []v1alpha1.ForeignCluster{changed(byPolicy("c1", 1, "home", byFirstUse), func(fc *v1alpha1.ForeignCluster) { delete(fc.Labels, v1alpha1.LabelManaged) })}, nil, nil, true, nil},
		"a person denied it since":         {nil, []v1alpha1.ForeignCluster{changed(byPolicy("c1", 1, "home", byFirstUse), func(fc *v1alpha1.ForeignCluster) { fc.Spec.Decision = v1alpha1.DecisionDenied })}, nil, nil, true, nil},
		"it is being forgotten":            {nil, []v1alpha1.ForeignCluster{changed(byPolicy("c1", 1, "home", byFirstUse), func(fc *v1alpha1.ForeignCluster) { fc.DeletionTimestamp = &metav1.Time{Time: now} })}, nil, nil, true, nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			has := func(list []int, id peering.ClusterID) bool {
				return slices.ContainsFunc(list, func(n int) bool { return peertest.SightedID(n) == id })
			}
			got := (&peerState{}).plan(peerInput{
				self: peertest.SightedID(0), rules: tt.rules, all: tt.all, now: now, random: none,
				gone: func(string) (bool, time.Time) { return tt.gone, now.Add(time.Minute) },
				forgotten: func(id peering.ClusterID) (bool, bool) {
					return has(tt.person, id) || has(tt.policy, id), has(tt.person, id)
				},
			})
			if diff := cmp.Diff(tt.want, decided(got)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

// Who invents clusters at the address of one whose ID is listed does not have it wait.
func TestListedClustersAreDialledFirst(t *testing.T) {
	t.Parallel()
	var all []v1alpha1.ForeignCluster
	listed := 1
	for n := 1; n <= 3*maxCalls; n++ {
		if peertest.SightedID(n) > peertest.SightedID(listed) {
			listed = n // the last one by ID
		}
		all = append(all, peertest.HintOf(fmt.Sprint("c", n), peertest.LAN(n, "eth0", func(s *v1alpha1.Sighting) { s.Endpoints = []string{"192.0.2.9:7443"} })))
	}
	s := &peerState{}
	view := peerInput{
		rules: []policyRule{grouping("a", "garage"), listing("home", listed)}, all: all, now: now, random: none,
		forgotten: func(peering.ClusterID) (bool, bool) { return false, false },
	}
	if got := s.plan(view).dial; len(got) != 1 || got[0].key.id != peertest.SightedID(listed) {
		t.Errorf("dialled %+v, want c%d", got, listed)
	}
}

// A policy's peer that is away is forgotten after a while, unless an administrator asks it.
func TestPeersThatAreAwayLapse(t *testing.T) {
	t.Parallel()
	peer := func(by basis, edits ...func(*v1alpha1.ForeignCluster)) v1alpha1.ForeignCluster {
		fc := byPolicy("c1", 1, "home", by)
		for _, edit := range edits {
			edit(&fc)
		}
		return fc
	}
	role := func(role v1alpha1.Role) func(*v1alpha1.ForeignCluster) {
		return func(fc *v1alpha1.ForeignCluster) { fc.Status.Role = role }
	}
	connected := func(fc *v1alpha1.ForeignCluster) {
		fc.Status.Conditions = append(fc.Status.Conditions, store.Condition(v1alpha1.ConditionConnected, metav1.ConditionTrue, "Up", ""))
	}
	found := func(fc *v1alpha1.ForeignCluster) {
		fc.Status.Sightings = []v1alpha1.Sighting{peertest.LAN(1, "eth0").Sighting}
	}
	garage := groupBasis("garage")
	rules := []policyRule{firstUse("home"), grouping("home", "garage"), listing("home", 1)}
	all := ruleOf("home", func(a *v1alpha1.AutomaticPeering) {
		a.TrustOnFirstUse, a.Group, a.ClusterIDs = true, rules[1].Group, rules[2].ClusterIDs
	})
	for name, tt := range map[string]struct {
		peer  v1alpha1.ForeignCluster
		asked bool
		// want is after how long it is let go; 0 is never.
		want time.Duration
	}{
		"first use":                            {peer(byFirstUse), false, vanishedAfter},
		"a group":                              {peer(garage, role(v1alpha1.RoleNone)), false, vanishedAfter},
		"its ID is listed":                     {peer(byClusterID), false, 0},
		"it provides":                          {peer(byFirstUse, role(v1alpha1.RoleProvider)), false, 0},
		"it consumes":                          {peer(garage, role(v1alpha1.RoleConsumer)), false, 0},
		"it is connected":                      {peer(byFirstUse, connected), false, 0},
		"it is found":                          {peer(byFirstUse, found), false, 0},
		"a person asks it":                     {peer(byFirstUse), true, 0},
		"it is denied":                         {peer(byFirstUse, func(fc *v1alpha1.ForeignCluster) { fc.Spec.Decision = v1alpha1.DecisionDenied }), false, 0},
		"it is a person's":                     {peer(byFirstUse, func(fc *v1alpha1.ForeignCluster) { delete(fc.Labels, v1alpha1.LabelAutomatic) }), false, 0},
		"it refuses":                           {peer(byFirstUse, refusing(0)), false, leftAfter},
		"it refused long ago, found until now": {peer(byFirstUse, refusing(time.Hour)), false, leftAfter},
		"it refuses, and its ID is listed":     {peer(byClusterID, refusing(0)), false, leftAfter},
		"it refuses, and still provides":       {peer(byFirstUse, refusing(0), role(v1alpha1.RoleProvider)), false, 0},
		"it refuses, and is found":             {peer(byFirstUse, refusing(0), found), false, 0},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &peerState{}
			letGo := func(after time.Duration, fc v1alpha1.ForeignCluster) (peerPlan, bool) {
				plan := s.plan(peerInput{
					self: peertest.SightedID(0), rules: []policyRule{all}, all: []v1alpha1.ForeignCluster{fc}, now: now.Add(after), random: none,
					asked: map[string]bool{"c1": tt.asked}, forgotten: func(peering.ClusterID) (bool, bool) { return false, false },
				})
				return plan, len(plan.letGo) > 0
			}
			if _, gone := letGo(0, peer(byFirstUse, found)); gone {
				t.Fatal("one that is found is let go")
			}
			const lost = time.Minute // when it was found last
			plan, gone := letGo(lost, tt.peer)
			if gone || plan.again != tt.want {
				t.Errorf("it is let go at once %t, or in %s, want %s", gone, plan.again, tt.want)
			}
			if tt.want == 0 {
				if _, gone := letGo(lost+10*vanishedAfter, tt.peer); gone {
					t.Error("it is let go")
				}
				return
			}
			if _, gone := letGo(lost+tt.want-time.Second, tt.peer); gone {
				t.Error("it is let go too early")
			}
			if plan, gone := letGo(lost+tt.want, tt.peer); !gone || plan.lapsed["c1"] == "" {
				t.Errorf("it is let go %t, as %q", gone, plan.lapsed)
			}
			// Seen once more, it has all that time again.
			letGo(lost+tt.want, changed(tt.peer, found))
			if _, gone := letGo(lost+tt.want+time.Second, tt.peer); gone {
				t.Error("it is let go a moment after it was seen")
			}
		})
	}
}

func TestMissingPolicyHasAMinuteToComeBack(t *testing.T) {
	t.Parallel()
	s := &peerState{}
	made, none := map[string]bool{"home": true}, map[string]bool{}
	at := func(after time.Duration, exists map[string]bool) bool {
		gone, _ := s.goneFor(made, exists, now.Add(after))("home")
		return gone
	}
	if at(0, none) || at(policyGone-time.Second, none) || !at(policyGone, none) {
		t.Error("a policy is not waited for as long as policyGone")
	}
	if !at(policyGone, made) {
		t.Error("one that is there and does not peer by itself is waited for")
	}
	if at(2*policyGone, none) {
		t.Error("one that was back is not waited for anew")
	}
}

// mesh is clusters on one LAN, in virtual time.
type mesh struct {
	states []*peerState
	rules  [][]policyRule
	trusts map[[2]int]bool
	// introduced is the introductions, from and to.
	introduced map[[2]int]bool
	calls      map[[2]int]int
	// answer is the error of a call of one cluster to another; nil means that both trust.
	answer func(from, to int) error
	random *rand.Rand
	most   int
	// step is how often each cluster reconciles.
	step time.Duration
	// views caches what each knows.
	views map[int][]v1alpha1.ForeignCluster
}

// view is what one of them knows of the others.
func (m *mesh) view(i int) []v1alpha1.ForeignCluster {
	if all, ok := m.views[i]; ok {
		return all
	}
	var all []v1alpha1.ForeignCluster
	for j := range m.states {
		switch pair := [2]int{i, j}; {
		case i == j:
		case m.trusts[pair]:
			all = append(all, byPolicy(fmt.Sprint("c", j), j, "home", byClusterID))
		case m.introduced[pair]:
			all = append(all, introduced(peertest.HintOf(fmt.Sprint("c", j), peertest.LAN(j, "eth0"))))
		default:
			all = append(all, peertest.HintOf(fmt.Sprint("c", j), peertest.LAN(j, "eth0")))
		}
	}
	m.views[i] = all
	return all
}

type meshCall struct {
	from, to int
	key      tryKey
	ends     time.Time
}

// run runs the mesh for a while; a call takes as long as took returns.
func (m *mesh) run(span, took time.Duration) {
	var running []meshCall
	random := func(most time.Duration) time.Duration { return time.Duration(m.random.Int64N(int64(most))) }
	for at := now; at.Before(now.Add(span)); at = at.Add(m.step) {
		for _, c := range running {
			if c.ends.After(at) {
				continue
			}
			err := m.answer(c.from, c.to)
			if err == nil {
				m.trusts[[2]int{c.from, c.to}], m.introduced[[2]int{c.to, c.from}] = true, true
				delete(m.views, c.from)
				delete(m.views, c.to)
			}
			m.states[c.from].done(c.key, err, at, random)
		}
		running = slices.DeleteFunc(running, func(c meshCall) bool { return !c.ends.After(at) })
		m.most = max(m.most, len(running))
		for i, s := range m.states {
			plan := s.plan(peerInput{
				self: peertest.SightedID(i), rules: m.rules[i], all: m.view(i), now: at, random: random,
				gone:      func(string) (bool, time.Time) { return false, at },
				forgotten: func(peering.ClusterID) (bool, bool) { return false, false },
			})
			for _, a := range plan.approve {
				var j int
				fmt.Sscanf(a.fc, "c%d", &j)
				m.trusts[[2]int{i, j}] = true
				delete(m.views, i)
			}
			for _, d := range plan.dial {
				var j int
				fmt.Sscanf(d.fc, "c%d", &j)
				m.calls[[2]int{min(i, j), max(i, j)}]++
				running = append(running, meshCall{i, j, d.key, at.Add(took)})
			}
		}
	}
}

func newMesh(seed uint64, n int, rule func(i int) policyRule) *mesh {
	m := &mesh{
		trusts: map[[2]int]bool{}, introduced: map[[2]int]bool{}, calls: map[[2]int]int{},
		answer: func(int, int) error { return nil }, random: rand.New(rand.NewPCG(seed, 1)),
		step: 100 * time.Millisecond, views: map[int][]v1alpha1.ForeignCluster{},
	}
	for i := range n {
		m.states, m.rules = append(m.states, &peerState{}), append(m.rules, []policyRule{rule(i)})
	}
	return m
}

func everyID(n int) []int {
	out := make([]int, n)
	for i := range out {
		out[i] = i
	}
	return out
}

// TestMeshPeersWithFewCalls has clusters that list each other start together.
func TestMeshPeersWithFewCalls(t *testing.T) {
	t.Parallel()
	const n = 20
	const pairs = n * (n - 1) / 2
	for seed := range uint64(2) {
		m := newMesh(seed, n, func(int) policyRule { return listing("home", everyID(n)...) })
		m.run(20*time.Second, 300*time.Millisecond)
		if len(m.trusts) != 2*pairs {
			t.Fatalf("in the end %d of %d trust each other", len(m.trusts), 2*pairs)
		}
		calls := 0
		for _, c := range m.calls {
			calls += c
		}
		if most := pairs * 3 / 2; calls > most {
			t.Errorf("%d calls for %d pairs, more than %d", calls, pairs, most)
		}
		if most := n * maxCalls; m.most > most {
			t.Errorf("%d calls at once, more than %d", m.most, most)
		}
	}
}

// TestWrongSecretIsNotTriedOften runs clusters whose secrets differ for hours.
func TestWrongSecretIsNotTriedOften(t *testing.T) {
	t.Parallel()
	const n, hours, perHour = 3, 3, 4
	for reason, most := range map[peering.Reason]int{
		peering.ReasonGroupSecretMismatch: perHour, peering.ReasonTrustDenied: perHour, peering.ReasonTrustForgotten: perHour,
		peering.ReasonGroupUnknown: 12, peering.ReasonPeerUnreachable: 30,
	} {
		m := newMesh(1, n, func(int) policyRule { return grouping("home", "garage") })
		m.step = 5 * time.Second
		m.answer = func(int, int) error { return peering.Errorf(reason, "no") }
		m.run(hours*time.Hour, 300*time.Millisecond)
		for pair, calls := range m.calls {
			if calls > hours*most+2 || calls == 0 {
				t.Errorf("%s: pair %v made %d calls in %d hours, more than %d an hour", reason, pair, calls, hours, most)
			}
		}
		if len(m.trusts) > 0 {
			t.Error("and they trust each other")
		}
	}
}

func TestTryStartsAgainAfterAChange(t *testing.T) {
	t.Parallel()
	s := &peerState{}
	rule := grouping("home", "garage")
	at := now
	dials := func() int {
		plan := s.plan(peerInput{
			self: peertest.SightedID(0), rules: []policyRule{rule}, all: []v1alpha1.ForeignCluster{peertest.HintOf("c1", peertest.LAN(1, "eth0"))}, now: at, random: none,
			gone: func(string) (bool, time.Time) { return false, at }, forgotten: func(peering.ClusterID) (bool, bool) { return false, false },
		})
		for _, d := range plan.dial {
			s.done(d.key, peering.Errorf(peering.ReasonGroupSecretMismatch, "no"), at, none)
		}
		return len(plan.dial)
	}
	if dials() != 1 {
		t.Fatal("it is not dialled")
	}
	said := s.attempt(peertest.SightedID(1))
	if said.Reason != "GroupSecretMismatch" || !strings.Contains(said.Message, "secretRef") || !strings.Contains(said.Message, "group garage") {
		t.Errorf("the attempt is %+v", said)
	}
	if at = at.Add(time.Minute); dials() != 0 {
		t.Error("it is dialled again after a minute")
	}
	if rule.revision = "2"; dials() != 1 {
		t.Error("it is not dialled after the secret changed")
	}
	if at = at.Add(longPause); dials() != 1 {
		t.Error("it is never dialled again")
	}
}

// A cluster that is refused as one that was forgotten does not learn whether an administrator forgot it.
func TestForgottenClusterLearnsWhatMayHaveHappened(t *testing.T) {
	t.Parallel()
	said, _ := outcomeOf(tryKey{policy: "home", by: byClusterID}, peering.Errorf(peering.ReasonTrustForgotten, "no"))
	for _, word := range []string{"administrator there", "policy there", "entente join"} {
		if said.Reason != trust.ReasonForgottenByPeer || !strings.Contains(said.Message, word) {
			t.Errorf("the attempt is %+v, without %q", said, word)
		}
	}
}

func TestEveryEndpointHasItsTurn(t *testing.T) {
	t.Parallel()
	all := []string{"a", "b", "c"}
	for tries, want := range []string{"a b", "c a", "b c", "a b"} {
		if got := strings.Join(endpointsOf(all, tries), " "); got != want {
			t.Errorf("try %d dials %s, want %s", tries, got, want)
		}
	}
	if got := endpointsOf(nil, 3); len(got) != 0 {
		t.Errorf("of none it dials %s", got)
	}
}

// TestFirstUseIsBounded has more clusters come than a policy trusts on first use.
func TestFirstUseIsBounded(t *testing.T) {
	t.Parallel()
	for name, edit := range map[string]func(v1alpha1.ForeignCluster) v1alpha1.ForeignCluster{
		"found": func(fc v1alpha1.ForeignCluster) v1alpha1.ForeignCluster { return fc }, "introduced": introduced,
	} {
		s := &peerState{}
		var all []v1alpha1.ForeignCluster
		for n := range maxFirstUse - 2 {
			all = append(all, changed(byPolicy(fmt.Sprint("c", n+1), n+1, "home", byFirstUse), func(fc *v1alpha1.ForeignCluster) { fc.Spec.Endpoints = nil }))
		}
		for n := maxFirstUse; n < maxFirstUse+10; n++ {
			all = append(all, edit(peertest.HintOf(fmt.Sprint("c", n), peertest.LAN(n, "eth0"))))
		}
		dials := 0
		for i := range 3 {
			plan := s.plan(peerInput{
				self: peertest.SightedID(0), rules: []policyRule{firstUse("home")}, all: all, now: now.Add(time.Duration(i) * time.Minute), random: none,
				gone: func(string) (bool, time.Time) { return false, now }, forgotten: func(peering.ClusterID) (bool, bool) { return false, false },
			})
			dials += len(plan.dial) // they do not end, and count
			if approved := len(plan.approve); name == "introduced" && approved != 2 {
				t.Errorf("%d that introduced themselves are trusted, want 2", approved)
			}
			if i == 2 && !plan.full["home"] {
				t.Errorf("%s: the outcome is not reported", name)
			}
		}
		if name == "found" && dials != 2 {
			t.Errorf("%d are dialled, want 2", dials)
		}
	}
}

// TestInventedClustersAreNotAllDialled lets discovery find many clusters at few places.
func TestInventedClustersAreNotAllDialled(t *testing.T) {
	t.Parallel()
	s := &peerState{}
	var all []v1alpha1.ForeignCluster
	for n := range 256 {
		all = append(all, peertest.HintOf(fmt.Sprint("c", n+1), peertest.LAN(n+1, "eth0", func(s *v1alpha1.Sighting) {
			s.Endpoints = []string{fmt.Sprintf("192.0.2.%d:7443", n%200+1)}
		})))
	}
	at := map[string][]time.Time{}
	total := 0
	for clock := now; clock.Before(now.Add(time.Minute)); clock = clock.Add(500 * time.Millisecond) {
		plan := s.plan(peerInput{
			self: peertest.SightedID(0), rules: []policyRule{firstUse("home")}, all: all, now: clock, random: none,
			gone: func(string) (bool, time.Time) { return false, clock }, forgotten: func(peering.ClusterID) (bool, bool) { return false, false },
		})
		if len(plan.dial) > maxCalls {
			t.Fatalf("%d at once", len(plan.dial))
		}
		for _, d := range plan.dial {
			total++
			for _, e := range d.endpoints {
				if last := at[e]; len(last) > 0 && clock.Sub(last[len(last)-1]) < endpointPause {
					t.Errorf("%s is dialled after %s", e, clock.Sub(last[len(last)-1]))
				}
				at[e] = append(at[e], clock)
			}
			s.done(d.key, errors.New("connection refused"), clock, none)
		}
	}
	if most := callBurst + 60*callRate + 1; total > most || total < most/2 {
		t.Errorf("%d calls in a minute, want about %d", total, most)
	}
}
