package controller

import (
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
	also := func(change func(*v1alpha1.TunnelSpec)) *v1alpha1.TunnelSpec {
		out := full.DeepCopy()
		change(out)
		return out
	}
	own := []netip.Addr{netip.MustParseAddr("10.200.0.1"), netip.MustParseAddr("10.200.3.9"), netip.MustParseAddr("192.168.5.1")}
	blocks := []v1alpha1.AliasBlock{
		{Alias: "10.251.0.0/30", Addresses: []string{"10.200.3.9", "10.200.66.6", "", "10.200.0.1"}},
		{Alias: "10.251.0.2/31", Addresses: []string{"192.168.5.1", ""}}, // overlaps the one before
		{Alias: "nonsense", Addresses: []string{"192.168.5.1"}},
	}
	ours := []v1alpha1.AliasBlock{{Alias: "10.251.0.0/30", Addresses: []string{"10.200.3.9", "", "", "10.200.0.1"}}}
	kept := also(func(s *v1alpha1.TunnelSpec) {
		s.Local = append(s.Local, v1alpha1.PrefixAlias{Prefix: six, Alias: "fd00:9::/64"})
	})
	for name, tc := range map[string]struct {
		peer     *v1alpha1.ForeignCluster
		local    []netip.Prefix
		own      []netip.Addr
		standing *v1alpha1.TunnelSpec
		want     *v1alpha1.TunnelSpec
		waits    string
	}{
		"equal prefixes are distinguished by both sides' aliases": {peer: peer(nil), want: full},
		"a prefix that the peer has no alias for stops no other": {
			peer: peer(nil), local: []netip.Prefix{prefix(pods), prefix(six)},
			want: also(func(s *v1alpha1.TunnelSpec) { s.Local = append(s.Local, v1alpha1.PrefixAlias{Prefix: six}) }),
		},
		"a prefix of the peer that we have no alias for stops no other": {
			peer: peer(func(fc *v1alpha1.ForeignCluster) {
				fc.Status.Network.Prefixes = append(fc.Status.Network.Prefixes, six)
			}),
			want: also(func(s *v1alpha1.TunnelSpec) { s.Remote = append(s.Remote, v1alpha1.PrefixAlias{Prefix: six}) }),
		},
		"a peer that leaves out an alias keeps the current one": {
			peer: peer(nil), local: []netip.Prefix{prefix(pods), prefix(six)}, standing: kept, want: kept,
		},
		"a current alias moves to another prefix": {
			peer: peer(nil), local: []netip.Prefix{prefix("10.201.0.0/16"), prefix(pods)},
			standing: &v1alpha1.TunnelSpec{Local: []v1alpha1.PrefixAlias{{Prefix: "10.201.0.0/16", Alias: "10.250.0.0/16"}}},
			want: also(func(s *v1alpha1.TunnelSpec) {
				s.Local = append([]v1alpha1.PrefixAlias{{Prefix: "10.201.0.0/16"}}, s.Local...)
			}),
		},
		"a peer that has announced nothing is waited for": {
			peer: peer(func(fc *v1alpha1.ForeignCluster) { fc.Status.Network = nil }), waits: "gateways",
		},
		"a peer that does not know what it has to know is waited for": {
			peer: peer(func(fc *v1alpha1.ForeignCluster) { fc.Status.Network.Aliases = nil }), own: own, waits: "aliases for 3 addresses of this cluster, 10.200.0.1 among them",
		},
		"a peer that has to know nothing yet is not": {
			peer: peer(func(fc *v1alpha1.ForeignCluster) { fc.Status.Network.Aliases = nil }),
			want: also(func(s *v1alpha1.TunnelSpec) { s.Local[0].Alias = "" }),
		},
		"addresses that the peer knows one by one, but those that it has no business to name": {
			peer: peer(func(fc *v1alpha1.ForeignCluster) {
				fc.Status.Network.Aliases, fc.Status.Network.AliasBlocks = nil, blocks
			}), own: own,
			want:  also(func(s *v1alpha1.TunnelSpec) { s.Local[0].Alias, s.LocalAliasBlocks = "", ours }),
			waits: "aliases for 1 addresses of this cluster, 192.168.5.1 among them",
		},
		"blocks that overlap the alias of a prefix do not count": {
			peer: peer(func(fc *v1alpha1.ForeignCluster) {
				fc.Status.Network.AliasBlocks = []v1alpha1.AliasBlock{{Alias: "10.250.7.0/32", Addresses: []string{"192.168.5.1"}}}
			}), own: own[2:], want: full, waits: "192.168.5.1 among them",
		},
		"addresses of the peer that are known one by one": {
			peer: peer(func(fc *v1alpha1.ForeignCluster) {
				fc.Status.Aliases, fc.Status.AliasBlocks = nil, []v1alpha1.AliasBlock{{Alias: "10.242.0.0/31", Addresses: []string{"10.200.0.1", ""}}}
			}),
			want: also(func(s *v1alpha1.TunnelSpec) {
				s.Remote[0].Alias, s.RemoteAliasBlocks = "", []string{"10.242.0.0/31"}
			}),
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
			got, waits := PlanTunnel(tc.peer, tc.local, tc.own, nil, tc.standing)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("tunnel (-want +got):\n%s", diff)
			}
			if (waits == "") != (tc.waits == "") || !strings.Contains(waits, tc.waits) {
				t.Errorf("waits for %q, want it to name %q", waits, tc.waits)
			}
		})
	}
}
