package transit

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func cluster(name string, passTo, through []string) v1alpha1.ForeignCluster {
	fc := v1alpha1.ForeignCluster{ObjectMeta: metav1.ObjectMeta{Name: name}}
	fc.Spec.ClusterID, fc.Spec.TrustBundle, fc.Spec.Transit = name+"-id", "roots", &v1alpha1.Transit{PassTo: passTo}
	fc.Status.Network = &v1alpha1.PeerNetwork{Through: through}
	return fc
}

func TestPacketsPassOnlyIfAllThreeAgree(t *testing.T) {
	t.Parallel()
	type pair struct{ a, c v1alpha1.ForeignCluster }
	for what, tc := range map[string]struct {
		change func(*pair)
		want   string
	}{
		"all agree":                   {func(*pair) {}, ""},
		"the peer is named alone":     {func(p *pair) { p.c.Spec.Transit = nil }, "passTo of c here does not name the peer"},
		"the peer does not agree":     {func(p *pair) { p.a.Status.Network = nil }, "the peer does not agree"},
		"the third does not agree":    {func(p *pair) { p.c.Status.Network.Through = []string{"x"} }, "c does not agree"},
		"the third is denied":         {func(p *pair) { p.c.Spec.Decision = v1alpha1.DecisionDenied }, "c is not trusted"},
		"the peer is not trusted yet": {func(p *pair) { p.a.Spec.TrustBundle = "" }, "the peer is not trusted"},
		"the third is being removed":  {func(p *pair) { p.c.DeletionTimestamp = new(metav1.Now()) }, "c is not trusted"},
		"the third is not a peer":     {func(p *pair) { p.c.Spec.ClusterID = "other" }, "not a peer of this cluster"},
		"the peer itself":             {func(p *pair) { p.a.Spec.ClusterID = "c-id" }, "the peer itself"},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			p := pair{cluster("a", []string{"c-id"}, []string{"c-id"}), cluster("c", []string{"a-id"}, []string{"a-id"})}
			tc.change(&p)
			all := []v1alpha1.ForeignCluster{p.a, p.c}
			states := States(&p.a, all)
			if len(states) != 1 || (tc.want == "") != (states[0].Missing == "") || !strings.Contains(states[0].Missing, tc.want) {
				t.Errorf("got %+v, want %q", states, tc.want)
			}
			if got := len(Agreed(&p.a, all)); got != len(states) && tc.want == "" || got > 0 && tc.want != "" {
				t.Errorf("%d agreed", got)
			}
			if back := Agreed(&p.c, all); what != "the peer itself" && (len(back) > 0) != (tc.want == "") {
				t.Errorf("the other way %v", back)
			}
		})
	}
}

func TestANamespaceAtTwoPeersThatDoNotReachEachOtherIsAGap(t *testing.T) {
	t.Parallel()
	at := func(namespace string, states map[string]string) v1alpha1.NamespaceOffloading {
		o := v1alpha1.NamespaceOffloading{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}}
		for peer, state := range states {
			o.Status.Clusters = append(o.Status.Clusters, v1alpha1.NamespaceInCluster{ForeignCluster: peer, State: state})
		}
		return o
	}
	const ready, ending, pending = v1alpha1.OffloadingReady, v1alpha1.OffloadingTerminating, v1alpha1.OffloadingPending
	both := []v1alpha1.NamespaceOffloading{
		at("shop", map[string]string{"a": ready, "c": ending, "d": pending}), at("bank", map[string]string{"a": ready, "c": ready}),
		at("news", map[string]string{"a": ready}), at("mail", map[string]string{"c": ready, "d": ready}),
	}
	for what, tc := range map[string]struct {
		change    func(all []v1alpha1.ForeignCluster)
		offloaded []v1alpha1.NamespaceOffloading
		want      string
	}{
		"transit is off":                       {offloaded: both, want: "[{c c-id [bank shop]}]"},
		"no namespace is at both":              {offloaded: both[2:], want: "[]"},
		"one of the two is named to the other": {offloaded: both, want: "[]", change: func(all []v1alpha1.ForeignCluster) { all[1].Spec.Transit.PassTo = []string{"a-id"} }},
		"it is on":                             {offloaded: both, want: "[]", change: func(all []v1alpha1.ForeignCluster) { all[0].Spec.Transit.PassTo = []string{"c-id"} }},
		"the third is not trusted":             {offloaded: both, want: "[]", change: func(all []v1alpha1.ForeignCluster) { all[1].Spec.TrustBundle = "" }},
		"the peer is not known":                {offloaded: both, want: "[]", change: func(all []v1alpha1.ForeignCluster) { all[0] = v1alpha1.ForeignCluster{} }},
	} {
		all := []v1alpha1.ForeignCluster{cluster("a", nil, nil), cluster("c", nil, nil), cluster("d", nil, nil)}
		if tc.change != nil {
			tc.change(all)
		}
		if got := fmt.Sprint(Gaps(&all[0], all, tc.offloaded)); got != tc.want {
			t.Errorf("%s: %s, want %s", what, got, tc.want)
		}
	}
}

func TestMoreAddressesThanThereIsRoomForAreCounted(t *testing.T) {
	t.Parallel()
	addr := netip.MustParseAddr
	out, left := List(map[string][]netip.Addr{"b": {addr("10.0.0.3")}, "a": {addr("10.0.0.2"), addr("10.0.0.1"), addr("10.0.0.2"), addr("10.0.0.4")}}, 3)
	if left != 1 || len(out) != 2 || out[0].ClusterID != "a" || strings.Join(out[0].Addresses, " ") != "10.0.0.1 10.0.0.2" || out[1].Addresses[0] != "10.0.0.3" {
		t.Errorf("%v, %d left out", out, left)
	}
	if back := FromWire(ToWire(out)); len(back) != 2 || back[0].ClusterID != "a" || len(back[0].Addresses) != 2 {
		t.Errorf("it crosses as %v", back)
	}
}

func TestEachClusterHasItsShareOfTheRoom(t *testing.T) {
	t.Parallel()
	for what, tc := range map[string]struct {
		need []int
		room int
		want string
	}{
		"there is room for all":              {[]int{3, 0, 4}, 7, "[3 0 4]"},
		"the first needs all of it":          {[]int{1024, 10}, 1024, "[1014 10]"},
		"the last needs all of it":           {[]int{10, 1024}, 1024, "[10 1014]"},
		"both need all of it":                {[]int{1024, 1024}, 1024, "[512 512]"},
		"what one does not need goes around": {[]int{900, 1, 900, 500}, 1000, "[333 1 333 333]"},
		"it does not divide evenly":          {[]int{9, 9, 9}, 10, "[3 3 4]"},
		"there is less than there are":       {[]int{9, 9, 9}, 2, "[0 1 1]"},
		"there is none":                      {[]int{9, 9}, 0, "[0 0]"},
		"there is less than none":            {[]int{9, 9}, -3, "[0 0]"},
		"nobody needs any":                   {nil, 5, "[]"},
	} {
		if got := fmt.Sprint(shares(tc.need, tc.room)); got != tc.want {
			t.Errorf("%s: %s, want %s", what, got, tc.want)
		}
	}
}

func TestOnlyAddressesOfClustersThatAreAcceptedAreKnown(t *testing.T) {
	t.Parallel()
	network := &v1alpha1.PeerNetwork{Transit: []v1alpha1.TransitAddresses{{ClusterID: "a", Addresses: []string{"10.0.0.1"}}, {ClusterID: "b", Addresses: []string{"10.0.0.2", "x"}}}}
	if got := Accepted(network, []string{"b"}); len(got) != 1 || got[0] != netip.MustParseAddr("10.0.0.2") {
		t.Errorf("got %v", got)
	}
	if got := Accepted(network, nil); len(got) > 0 {
		t.Errorf("got %v without consent", got)
	}
}

func TestAChangeOfAPeerConcernsThoseItIsReachedWith(t *testing.T) {
	t.Parallel()
	a, b, c := cluster("a", nil, nil), cluster("b", nil, nil), cluster("c", nil, nil)
	b.Spec.Transit.Through, c.Spec.Transit.PassTo = []string{"a-id"}, []string{"b-id"}
	all := []v1alpha1.ForeignCluster{a, b, c}
	was := cluster("b", nil, nil) // before it was changed
	was.Spec.Transit.Through = []string{"c-id"}
	for _, tc := range []struct {
		of   v1alpha1.ForeignCluster
		want string
	}{{a, "[b]"}, {b, "[a c]"}, {c, "[b]"}, {cluster("d", nil, nil), "[]"}, {was, "[a c]"}} {
		if got := fmt.Sprint(Concerned(&tc.of, all)); got != tc.want {
			t.Errorf("%s concerns %s, want %s", tc.of.Spec.ClusterID, got, tc.want)
		}
	}
}
