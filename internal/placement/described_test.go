package placement

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
)

type described = map[string]string

// offering is a peer whose last offer changed at a time.
func offering(at time.Time, labels described, pools ...v1alpha1.OfferedPool) *v1alpha1.ForeignCluster {
	return &v1alpha1.ForeignCluster{Status: v1alpha1.ForeignClusterStatus{Offer: &v1alpha1.Offer{NodeLabels: labels, Pools: pools, ObservedAt: metav1.NewTime(at)}}}
}

func TestLabelsThatAnOfferContradictsAreNotShown(t *testing.T) {
	t.Parallel()
	now := time.Unix(1_800_000_000, 0)
	signed := described{"kubernetes.io/arch": "amd64", "topology.kubernetes.io/zone": "a", "example.com/may-go": "yes"}
	gpu := v1alpha1.OfferedPool{Name: "gpu", NodeLabels: described{"kind": "gpu", "kubernetes.io/arch": "arm64"}}
	for name, tc := range map[string]struct {
		selector described
		peer     *v1alpha1.ForeignCluster
		pool     string
		want     described
	}{
		"an unknown peer":        {want: signed},
		"no offer":               {peer: &v1alpha1.ForeignCluster{}, want: signed},
		"an offer of nothing":    {peer: offering(now, nil), want: signed},
		"the same":               {peer: offering(now, signed), want: signed},
		"more":                   {peer: offering(now, described{"kubernetes.io/arch": "amd64", "topology.kubernetes.io/zone": "a", "example.com/may-go": "yes", "topology.kubernetes.io/region": "eu"}), want: signed},
		"another architecture":   {peer: offering(now, described{"kubernetes.io/arch": "arm64", "topology.kubernetes.io/zone": "a"}), want: described{"topology.kubernetes.io/zone": "a"}},
		"several architectures":  {peer: offering(now, described{"topology.kubernetes.io/zone": "a"}), want: described{"topology.kubernetes.io/zone": "a"}},
		"the contract's nodes":   {selector: described{"kind": "cpu"}, peer: offering(now, described{"kind": "cpu", "kubernetes.io/arch": "amd64"}), want: described{"kind": "cpu", "kubernetes.io/arch": "amd64"}},
		"other nodes":            {selector: described{"kind": "cpu"}, peer: offering(now, described{"kubernetes.io/arch": "arm64"}), want: described{"kind": "cpu", "kubernetes.io/arch": "amd64", "topology.kubernetes.io/zone": "a", "example.com/may-go": "yes"}},
		"of its pool":            {selector: described{"kind": "gpu"}, pool: "gpu", peer: offering(now, signed, gpu), want: described{"kind": "gpu"}},
		"of other pools":         {selector: described{"kind": "cpu"}, pool: "cpu", peer: offering(now, nil, gpu), want: described{"kind": "cpu", "kubernetes.io/arch": "amd64", "topology.kubernetes.io/zone": "a", "example.com/may-go": "yes"}},
		"only the unnamed nodes": {pool: "cpu", peer: offering(now, described{"kubernetes.io/arch": "arm64"}, gpu), want: signed},
	} {
		var d Described
		if diff := cmp.Diff(tc.want, d.Update(signed, tc.selector, tc.peer, tc.pool, now)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

// A provider whose offer flaps makes home write its node once in describedPause.
func TestOffersChangeLabelsOnceInAPause(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_800_000_000, 0)
	signed := described{"kubernetes.io/arch": "amd64"}
	var d Described
	shown, changes, due := d.Update(signed, nil, offering(start, signed), "", start), 0, 0
	for second := range 10 * 60 {
		now := start.Add(time.Duration(second) * time.Second)
		offered := signed
		if second%2 == 0 {
			offered = described{"kubernetes.io/arch": "arm64"}
		}
		is := d.Update(signed, nil, offering(now, offered), "", now)
		if !cmp.Equal(is, shown) {
			shown, changes = is, changes+1
		}
		if d.Due(now) {
			due++
		}
	}
	if changes < 2 || changes > 10 || due > 0 {
		t.Errorf("it changed %d times in ten minutes, and %d changes are due", changes, due)
	}
	// What waits is shown after the pause.
	end := start.Add(time.Hour)
	d.Update(signed, nil, offering(end, described{"x": "y"}), "", end)
	if is := d.Update(signed, nil, offering(end, signed), "", end.Add(time.Second)); len(is) > 0 || d.Due(end.Add(time.Second)) || !d.Due(end.Add(describedPause)) {
		t.Errorf("it shows %v at once", is)
	}
	if is := d.Update(signed, nil, offering(end, signed), "", end.Add(describedPause)); !cmp.Equal(is, signed) || d.Due(end.Add(2*describedPause)) {
		t.Errorf("after the pause it shows %v", is)
	}
}

// What was signed is newer than an offer that was received before.
func TestAnAmendmentShowsAtOnceAndOverOlderOffers(t *testing.T) {
	t.Parallel()
	start := time.Unix(1_800_000_000, 0)
	var d Described
	before, after := described{"kubernetes.io/arch": "amd64"}, described{"kubernetes.io/arch": "arm64"}
	other := offering(start, described{"x": "y"})
	if is := d.Update(before, nil, other, "", start); len(is) > 0 {
		t.Errorf("at first it shows %v", is)
	}
	later := start.Add(10*time.Second + time.Millisecond)
	if is := d.Update(after, nil, other, "", later); !cmp.Equal(is, after) {
		t.Errorf("after an amendment it shows %v", is)
	}
	// The time of an offer has whole seconds.
	if is := d.Update(after, nil, offering(later.Truncate(time.Second), before), "", later.Add(time.Second)); len(is) > 0 {
		t.Errorf("after a newer offer it shows %v", is)
	}
}
