package controller

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/entente-dev/entente/api/v1alpha1"
)

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

func TestPlanTunnel(t *testing.T) {
	t.Parallel()
	const pods = "10.200.0.0/16"
	peer := func(edit func(*v1alpha1.ForeignCluster)) *v1alpha1.ForeignCluster {
		fc := &v1alpha1.ForeignCluster{}
		fc.Name, fc.Spec.ClusterID = "milan", "abc"
		fc.Status.Network = &v1alpha1.PeerNetwork{
			Gateways: []v1alpha1.Gateway{{Name: "n1"}}, Prefixes: []string{pods},
			Aliases: []v1alpha1.PrefixAlias{{Prefix: pods, Alias: "10.250.0.0/16"}},
		}
		fc.Status.Aliases = []v1alpha1.PrefixAlias{{Prefix: pods, Alias: "10.240.0.0/16"}}
		if edit != nil {
			edit(fc)
		}
		return fc
	}
	full := &v1alpha1.TunnelSpec{
		ForeignCluster: "milan", PeerID: "abc", Gateways: []v1alpha1.Gateway{{Name: "n1"}},
		Local:  []v1alpha1.PrefixAlias{{Prefix: pods, Alias: "10.250.0.0/16"}},
		Remote: []v1alpha1.PrefixAlias{{Prefix: pods, Alias: "10.240.0.0/16"}},
	}
	const six = "fd00:1::/64"
	kept := *full
	kept.Local = append([]v1alpha1.PrefixAlias{}, full.Local[0], v1alpha1.PrefixAlias{Prefix: six, Alias: "fd00:9::/64"})
	for name, tc := range map[string]struct {
		peer     *v1alpha1.ForeignCluster
		local    []netip.Prefix
		standing *v1alpha1.TunnelSpec
		want     *v1alpha1.TunnelSpec
		waits    string
	}{
		"equal prefixes are told apart by both sides' aliases": {peer: peer(nil), want: full},
		"a prefix that the peer has no alias for stops no other": {
			peer: peer(nil), local: []netip.Prefix{prefix(pods), prefix(six)}, want: full, waits: "alias for this cluster's prefix " + six,
		},
		"a prefix of the peer that we have no alias for stops no other": {
			peer: peer(func(fc *v1alpha1.ForeignCluster) {
				fc.Status.Network.Prefixes = append(fc.Status.Network.Prefixes, six)
			}),
			want: full, waits: "peer's prefix " + six,
		},
		"a peer that leaves out an alias keeps the one that stands": {
			peer: peer(nil), local: []netip.Prefix{prefix(pods), prefix(six)}, standing: &kept, want: &kept,
		},
		"an alias that stands gives way to another prefix": {
			peer: peer(nil), local: []netip.Prefix{prefix("10.201.0.0/16"), prefix(pods)},
			standing: &v1alpha1.TunnelSpec{Local: []v1alpha1.PrefixAlias{{Prefix: "10.201.0.0/16", Alias: "10.250.0.0/16"}}},
			want:     full, waits: "alias for this cluster's prefix 10.201.0.0/16",
		},
		"a peer that has said nothing is waited for": {
			peer: peer(func(fc *v1alpha1.ForeignCluster) { fc.Status.Network = nil }), waits: "gateways",
		},
		"a peer without an alias for us is waited for": {
			peer: peer(func(fc *v1alpha1.ForeignCluster) { fc.Status.Network.Aliases = nil }), waits: "alias for this cluster's prefix " + pods,
		},
		"a prefix that we have no alias for is told of": {
			peer: peer(func(fc *v1alpha1.ForeignCluster) { fc.Status.Aliases = nil }), waits: "peer's prefix " + pods,
		},
		"a peer without prefixes has no tunnel": {
			peer: peer(func(fc *v1alpha1.ForeignCluster) { fc.Status.Network.Prefixes = nil }), waits: "no pod prefixes",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.local == nil {
				tc.local = []netip.Prefix{prefix(pods)}
			}
			got, waits := PlanTunnel(tc.peer, tc.local, tc.standing)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("tunnel (-want +got):\n%s", diff)
			}
			if (waits == "") != (tc.waits == "") || !strings.Contains(waits, tc.waits) {
				t.Errorf("waits for %q, want it to name %q", waits, tc.waits)
			}
		})
	}
}

func TestPlanAliases(t *testing.T) {
	t.Parallel()
	// first gives the first prefix of the pool that is free.
	first := func(taken []netip.Prefix, wanted netip.Prefix) (netip.Prefix, error) {
		for _, candidate := range []netip.Prefix{prefix("10.240.0.0/16"), prefix("10.241.0.0/16")} {
			free := true
			for _, p := range taken {
				free = free && !p.Overlaps(candidate)
			}
			if free && candidate.Bits() == wanted.Bits() {
				return candidate, nil
			}
		}
		return netip.Prefix{}, errors.New("no room")
	}
	alias := func(p, a string) v1alpha1.PrefixAlias { return v1alpha1.PrefixAlias{Prefix: p, Alias: a} }
	own := []netip.Prefix{prefix("10.200.0.0/16")}
	for name, tc := range map[string]struct {
		have     []v1alpha1.PrefixAlias
		prefixes []string
		want     []v1alpha1.PrefixAlias
		fails    bool
	}{
		"a prefix that is free here gets an alias all the same": {prefixes: []string{"10.9.0.0/16"}, want: []v1alpha1.PrefixAlias{alias("10.9.0.0/16", "10.240.0.0/16")}},
		"an alias outside the pool is replaced":                 {have: []v1alpha1.PrefixAlias{alias("8.8.0.0/16", "8.8.0.0/16")}, prefixes: []string{"8.8.0.0/16"}, want: []v1alpha1.PrefixAlias{alias("8.8.0.0/16", "10.240.0.0/16")}},
		"our own prefix gets another":                           {prefixes: []string{"10.200.0.0/16"}, want: []v1alpha1.PrefixAlias{alias("10.200.0.0/16", "10.240.0.0/16")}},
		"what stands stays":                                     {have: []v1alpha1.PrefixAlias{alias("10.200.0.0/16", "10.241.0.0/16")}, prefixes: []string{"10.200.0.0/16"}, want: []v1alpha1.PrefixAlias{alias("10.200.0.0/16", "10.241.0.0/16")}},
		"what stands stays when a prefix joins":                 {have: []v1alpha1.PrefixAlias{alias("10.200.0.0/16", "10.240.0.0/16")}, prefixes: []string{"10.1.0.0/16", "10.200.0.0/16"}, want: []v1alpha1.PrefixAlias{alias("10.1.0.0/16", "10.241.0.0/16"), alias("10.200.0.0/16", "10.240.0.0/16")}},
		"what is no longer announced goes":                      {have: []v1alpha1.PrefixAlias{alias("10.200.0.0/16", "10.240.0.0/16")}},
		"an alias that became taken is replaced":                {have: []v1alpha1.PrefixAlias{alias("10.200.0.0/16", "10.200.0.0/16")}, prefixes: []string{"10.200.0.0/16"}, want: []v1alpha1.PrefixAlias{alias("10.200.0.0/16", "10.240.0.0/16")}},
		"a full pool is an error, and stops no other prefix":    {prefixes: []string{"10.200.0.0/17", "10.200.0.0/16"}, want: []v1alpha1.PrefixAlias{alias("10.200.0.0/16", "10.240.0.0/16")}, fails: true},
		"nonsense is an error":                                  {prefixes: []string{"10.200.0.1/16"}, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got, err := PlanAliases(tc.have, tc.prefixes, []netip.Prefix{prefix("10.240.0.0/12")}, own, first)
			if (err != nil) != tc.fails {
				t.Fatalf("error %v, want one: %t", err, tc.fails)
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("aliases (-want +got):\n%s", diff)
			}
		})
	}
}
