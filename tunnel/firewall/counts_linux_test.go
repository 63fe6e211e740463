package firewall

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/nftables/expr"

	"github.com/entente-dev/entente/tunnel/plan"
)

// Each counter of the table is given a value of its own, and all are found again as what they
// count.
func TestCountersAreReadByPeerAndReason(t *testing.T) {
	peers := []plan.Peer{peerNumber(1), peerNumber(2)}
	for i := range peers {
		peers[i].Gateways[0].Pods = []netip.Prefix{cidr("10.200.7.0/24")}
	}
	err := alone(t, func() error {
		want := rulesDirectly(t, []string{"peer1/x"}, peers...)
		// By chain and rule, as the rules are written.
		values, next := map[string][]uint64{}, uint64(0)
		for _, c := range want.chains {
			for i := range c.rules {
				for j, e := range c.rules[i].exprs {
					if _, ok := e.(*expr.Counter); ok {
						next++
						c.rules[i].exprs[j] = &expr.Counter{Packets: next, Bytes: 100 * next}
						values[c.name] = append(values[c.name], next)
					}
				}
			}
		}
		if err := change(want); err != nil {
			return err
		}
		got, err := ReadTotals(peers)
		if err != nil {
			return err
		}
		at := func(chain string, i int) Count {
			if len(values[chain]) <= i {
				t.Fatalf("chain %s has %d counters", chain, len(values[chain]))
			}
			return Count{values[chain][i], 100 * values[chain][i]}
		}
		expected := newTotals()
		for _, p := range peers {
			name := ipv4().peerSuffix(p.ClusterID)
			in := fmt.Sprintf("%s%s-%02x", "direct-in", name, 12)
			expected.Carried[p.ClusterID] = Flow{Received: at("enter"+name, 0), Sent: at("leave"+name, 0)}
			expected.Direct[p.ClusterID] = Flow{Received: at(in, 0), Sent: at("direct-out"+name, 0)}
			expected.Dropped[Drop{NotOurs, p.ClusterID}] = at("enter"+name, 1).plus(at(fmt.Sprintf("entry-in%s-%02x", name, 12), 0))
			expected.Dropped[Drop{NotHere, p.ClusterID}] = at(in, 1)
			expected.Dropped[Drop{NoAlias, p.ClusterID}] = at("leave"+name, 1)
		}
		expected.Dropped[Drop{Reason: NotExposed}] = at("from-tunnel", 1).plus(at("input", 1))
		expected.Dropped[Drop{Reason: Transit}] = at("from-tunnel", 0)
		expected.Dropped[Drop{Reason: NotFromPod}] = at("to-tunnel", 1)
		expected.Dropped[Drop{Reason: ToOverlay}] = at("to-tunnel", 0)
		expected.Dropped[Drop{Reason: FromNetwork}] = at("input", 0)
		expected.Dropped[Drop{Reason: InClear}] = got.Dropped[Drop{Reason: InClear}]
		if expected.Dropped[Drop{Reason: InClear}].Packets == 0 {
			t.Error("what would leave in clear is not counted")
		}
		if diff := cmp.Diff(expected, got); diff != "" {
			t.Errorf("(-want +got)\n%s", diff)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func TestAliasesLeadToTheirPeers(t *testing.T) {
	o := aliasOwners([]plan.Peer{peerNumber(2), peerNumber(1), {ClusterID: "blocks", RemoteBlocks: []netip.Prefix{cidr("12.3.4.64/26")}}})
	for addr, want := range map[string]string{
		"12.1.0.0": "peer1", "12.1.255.255": "peer1", "12.2.0.0": "peer2", "12.3.4.64": "blocks", "12.3.4.127": "blocks",
		"12.0.255.255": "", "12.3.0.0": "", "12.3.4.128": "", "255.255.255.255": "", "::1": "",
	} {
		if got := o.of(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s is of %q, want %q", addr, got, want)
		}
	}
}

// Answers of the kernel are read without trust in their form.
func FuzzRuleOfTheKernel(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 8, 0, 2, 0, 'c', 0, 0, 0})
	f.Add([]byte{1, 0, 0, 0, 20, 0, 4, 128, 16, 0, 1, 128, 12, 0, 1, 0, 'c', 'o', 'u', 'n', 't', 'e', 'r', 0})
	f.Fuzz(func(_ *testing.T, b []byte) { _, _, _, _ = decodeRule(b) })
}
