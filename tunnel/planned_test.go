package tunnel

import (
	"net/netip"
	"testing"

	"github.com/entente-dev/entente/tunnel/plan"
)

func TestAPlanIsMadeAgainOnlyIfItsInputChanged(t *testing.T) {
	key := plan.PublicKey{7}
	d := plan.Desired{ClusterID: "home", Node: "n", Nodes: []plan.Node{{Name: "n", Gateway: true}}}
	observed := func(turn uint64) plan.Observed {
		return plan.Observed{Turn: turn, Sources: []netip.Addr{netip.MustParseAddr("10.0.0.1")}, Proven: map[plan.PublicKey]string{key: "peer"}}
	}
	var p planned
	next := func(w input) bool {
		t.Helper()
		_, made, err := p.next(w, *w.desired)
		if err != nil {
			t.Fatal(err)
		}
		return made
	}
	if !next(input{desired: &d, observed: observed(1)}) || next(input{desired: &d, observed: observed(1)}) || next(input{desired: &d, observed: observed(2)}) {
		t.Error("it is not made once")
	}
	other, pods := d, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	for what, w := range map[string]input{
		"another desired state":  {desired: &other, observed: observed(2)},
		"a node that hands over": {desired: &d, kept: []string{"n"}, observed: observed(2)},
		"other pods":             {desired: &d, pods: pods, observed: observed(2)},
		"announced other pods":   {desired: &d, announced: pods, observed: observed(2)},
		"nothing observed":       {desired: &d},
	} {
		next(input{desired: &d, observed: observed(2)})
		if !next(w) || next(w) {
			t.Errorf("%s: it is not made once", what)
		}
	}
	two := func(cluster string) plan.Peer {
		return plan.Peer{ClusterID: cluster, Gateways: []plan.Gateway{{Node: "g", PublicKey: key}}}
	}
	d.Peers = []plan.Peer{two("one"), two("two")}
	fresh := d
	if !next(input{desired: &fresh, observed: observed(2)}) || !next(input{desired: &fresh, observed: observed(3)}) {
		t.Error("two announce the same key, and no turn comes")
	}
}
