package plan

import (
	"net/netip"
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestEntryFormKeepsTheHostPart(t *testing.T) {
	for alias, want := range map[string]string{
		"198.18.7.0/24": "230.18.7.0/24", "10.242.0.0/16": "234.242.0.0/16", "10.0.0.0/8": "234.0.0.0/8",
		"fdd7:585b:e300::/48": "fbd7:585b:e300::/48", "2001:db8:1::/64": "fb01:db8:1::/64",
	} {
		if got := EntryForm(pfx(alias)); got != pfx(want) || !IsEntryForm(got) || IsEntryForm(pfx(alias)) || IsEntryForm(DirectForm(pfx(alias))) {
			t.Errorf("the entry form of %s is %v, want %s", alias, got, want)
		}
	}
}

// enterDesired is what a worker desires whose peer has two gateways, x and y, with pods.
func enterDesired() Desired {
	d := direct()
	d.Peers[0].Gateways = append(d.Peers[0].Gateways, Gateway{Node: "y", PublicKey: PublicKey{11}, Endpoints: []string{"198.51.100.11:51820"}, Pods: []netip.Prefix{pfx("10.200.11.0/24")}})
	return d
}

// entryWanted is the agreement with which a gateway of that peer lets the worker's packets enter, as it computes it.
func entryWanted(d Desired) uint64 {
	return entryAgreement(d.Peers[0].ClusterID, entryMappings(d.Peers[0].Remote), d.ClusterID, []netip.Prefix{pfx("10.241.2.0/24")})
}

// entryBound is the entry form of the aliases of that peer.
func entryBound(d Desired) (out []netip.Prefix) {
	for _, m := range d.Peers[0].Remote {
		out = append(out, EntryForm(m.Alias))
	}
	slices.SortFunc(out, netip.Prefix.Compare)
	return out
}

func TestPacketsEnterWhereAGatewayAgreesAndTheDeviceIsReady(t *testing.T) {
	type state struct {
		agrees, bound, use, leaving bool
	}
	fit := state{agrees: true, bound: true, use: true}
	for name, tt := range map[string]struct {
		x, y   state
		change func(*Desired)
		// bound is the gateway to which the entry form is bound, enters says that packets go there.
		bound  string
		enters bool
	}{
		"the gateway is fit":                          {x: fit, bound: "x", enters: true},
		"it does not agree":                           {x: state{bound: true, use: true}, bound: "x"},
		"the device does not send there yet":          {x: state{agrees: true, use: true}, bound: "x"},
		"its path is down":                            {x: state{agrees: true, bound: true}, bound: "x"},
		"its tunnel is given up":                      {x: state{agrees: true, bound: true, use: true, leaving: true}, bound: "y"},
		"another one agrees":                          {x: state{bound: true, use: true}, y: state{agrees: true, use: true}, bound: "y"},
		"another one agrees as well":                  {x: state{agrees: true, use: true}, y: fit, bound: "y", enters: true},
		"none is known":                               {bound: "x"},
		"another one does, and is bound":              {x: state{use: true}, y: fit, bound: "y", enters: true},
		"this node carries":                           {x: fit, change: func(d *Desired) { d.Nodes[0].Gateway, d.Nodes[1].Gateway = false, true }},
		"the peer's prefixes have other aliases here": {x: fit, change: func(d *Desired) { d.Peers[0].Remote[0].Alias = pfx("10.243.0.0/16") }, bound: "x"},
		"the peer calls this node's pods other names": {x: fit, change: func(d *Desired) { d.Peers[0].Local[0].Alias = pfx("10.249.0.0/16") }, bound: "x"},
		"nothing of this node was announced":          {x: fit, change: func(d *Desired) { d.Announced = nil }},
		"the peer has single addresses only": {x: fit, change: func(d *Desired) {
			d.Peers[0].Remote = nil
			d.Peers[0].RemoteBlocks = []netip.Prefix{pfx("10.242.0.0/24")}
		}},
		"the entry form of an alias is used otherwise": {x: fit, change: func(d *Desired) { d.Reserved = append(d.Reserved, pfx("234.0.0.0/8")) }},
	} {
		t.Run(name, func(t *testing.T) {
			d := enterDesired()
			want, bound := entryWanted(d), entryBound(d)
			if tt.change != nil {
				tt.change(&d)
			}
			var o Observed
			nodes, _ := RemoteNodes(d)
			for _, n := range nodes {
				s := map[string]state{"x": tt.x, "y": tt.y}[n.Node]
				if !n.IsGateway {
					continue
				}
				in := Direct{RemoteNode: n, Use: s.use, Leaving: s.leaving}
				if s.agrees {
					in.EntryReceived = want
				}
				if s.bound {
					in.Bound = bound
				}
				o.Direct = append(o.Direct, in)
			}
			l, err := Plan(d, o)
			if err != nil {
				t.Fatal(err)
			}
			got, enters := "", false
			for _, w := range l.Peers {
				if slices.ContainsFunc(w.AllowedIPs, IsEntryForm) {
					got += w.Node
				}
				enters = enters || w.Entry
			}
			if got != tt.bound || enters != tt.enters {
				t.Errorf("the entry form is bound to %q, packets go there: %v; want %q, %v", got, enters, tt.bound, tt.enters)
			}
			if open := len(l.Direct) > 0 && len(l.Direct[0].Enter) > 0; open != tt.enters {
				t.Errorf("the firewall sends there: %v, want %v", open, tt.enters)
			}
			if on := slices.ContainsFunc(l.Routes, func(r Route) bool { return r.Entry.IsValid() }); on != tt.enters {
				t.Errorf("routes know the size of packets there: %v, want %v", on, tt.enters)
			}
		})
	}
}

// Only the gateway that carries a peer lets packets of its nodes enter: other nodes accept them from no
// other gateway.
func TestOnlyTheGatewayThatCarriesIsAnEntry(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*Desired, *Carrier)
		entry  bool // packets are accepted
		agrees bool // and that is announced
	}{
		"it carries":          {func(*Desired, *Carrier) {}, true, true},
		"it is about to stop": {func(_ *Desired, c *Carrier) { c.Claims = false }, true, false},
		"another one carries": {func(_ *Desired, c *Carrier) { c.Home = "gw" }, false, false},
		"it is no gateway":    {func(d *Desired, _ *Carrier) { d.Nodes[1].Gateway = false }, false, false},
		"two aliases have the same entry form": {func(d *Desired, _ *Carrier) {
			d.Peers[0].Local = append(d.Peers[0].Local, Mapping{pfx("10.201.0.0/16"), pfx("26.241.0.0/16")})
		}, false, false},
		"all is single addresses": {func(d *Desired, _ *Carrier) {
			d.Announced = []netip.Prefix{pfx("10.200.2.5/32")}
			d.Peers[0].Local = []Mapping{{pfx("10.200.2.5/32"), pfx("10.241.2.5/32")}}
		}, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			d, c := direct(), Carrier{Home: "worker", Claims: true}
			d.Nodes[1].Gateway = true
			tt.change(&d, &c)
			var o Observed
			nodes, _ := RemoteNodes(d)
			for _, n := range nodes {
				o.Direct = append(o.Direct, Direct{RemoteNode: n})
			}
			o.Carriers = map[string]Carrier{"away": c}
			l, err := Plan(d, o)
			if err != nil {
				t.Fatal(err)
			}
			entry := slices.ContainsFunc(l.Direct, func(p DirectPeer) bool { return len(p.Entry) > 0 })
			agrees := slices.ContainsFunc(l.Peers, func(w WireGuardPeer) bool { return w.Node == "z" && w.EntryAgreement != 0 })
			if entry != tt.entry || agrees != tt.agrees {
				t.Errorf("packets enter: %v, announced: %v; want %v, %v", entry, agrees, tt.entry, tt.agrees)
			}
		})
	}
}

// Whatever the order of lists: a gateway and a node agree only if all is the same.
func TestEntriesAgreeOnTheSamePodsOnly(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		draw := func(what string) (cluster string, entry []Mapping, other string, pods []netip.Prefix) {
			name := rapid.SampledFrom([]string{"a", "b"})
			prefix := rapid.Custom(func(t *rapid.T) netip.Prefix {
				return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(rapid.IntRange(0, 2).Draw(t, "prefix"))}), 16)
			})
			for _, p := range rapid.SliceOfNDistinct(prefix, 0, 2, rapid.ID).Draw(t, what+" entry") {
				entry = append(entry, Mapping{Alias: p})
			}
			return name.Draw(t, what+" cluster"), entry, name.Draw(t, what+" other"), rapid.SliceOfNDistinct(prefix, 0, 2, rapid.ID).Draw(t, what+" pods")
		}
		c1, e1, o1, p1 := draw("one")
		c2, e2, o2, p2 := draw("two")
		sorted := func(e []Mapping, p []netip.Prefix) (out [2][]netip.Prefix) {
			for _, m := range e {
				out[0] = append(out[0], m.Alias)
			}
			out[1] = slices.Clone(p)
			slices.SortFunc(out[0], netip.Prefix.Compare)
			slices.SortFunc(out[1], netip.Prefix.Compare)
			return out
		}
		s1, s2 := sorted(e1, p1), sorted(e2, p2)
		same := c1 == c2 && o1 == o2 && slices.Equal(s1[0], s2[0]) && slices.Equal(s1[1], s2[1])
		if got := entryAgreement(c1, e1, o1, p1) == entryAgreement(c2, e2, o2, p2); got != same {
			t.Errorf("equal: %v, want %v", got, same)
		}
	})
}
