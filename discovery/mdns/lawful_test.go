package mdns

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/entente-dev/entente/discovery/mdns/internal/rules"
)

// capture is the log of a LAN as another program would have captured it.
func (n *lan) capture() []rules.Packet {
	var out []rules.Packet
	for _, s := range n.log {
		p := rules.Packet{At: s.at, Host: s.from.name, From: netip.AddrPortFrom(s.from.addr, port), To: s.to, Data: s.data}
		if !p.To.IsValid() {
			p.To = netip.AddrPortFrom(groupOf(ipv4Family), port)
		}
		out = append(out, p)
	}
	return out
}

// Whatever clusters do for hours, no packet breaks a rule, to the millisecond that one takes here.
// The checker uses another codec and shares no code with the sender.
func TestSentPacketsKeepTheRules(t *testing.T) {
	t.Parallel()
	for seed := range uint64(6) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			n := newLAN(t)
			r := rand.New(rand.NewPCG(seed, 5))
			n.rand = rand.New(rand.NewPCG(seed, 6))
			var here []*host
			for i := range 20 {
				switch what := r.IntN(3); {
				case len(here) < 2 || what == 0 && len(here) < 8:
					h := n.cluster(fmt.Sprintf("cluster %d", r.IntN(4)))
					h.rand = rand.New(rand.NewPCG(seed, uint64(i)))
					here = append(here, h)
				case what == 1:
					at := r.IntN(len(here))
					here[at].publish(n.now, nil)
					here[at].browse(n.now, nil)
					here = slices.Delete(here, at, at+1)
				default:
					h := here[r.IntN(len(here))]
					s := slices.Clone(h.services)
					s[0].Automatic, s[0].Port = r.IntN(2) == 0, uint16(7000+r.IntN(3))
					h.publish(n.now, s)
				}
				n.run(time.Duration(r.Int64N(int64(5 * time.Minute))))
			}
			n.run(time.Hour)
			violations := rules.Check(n.capture(), rules.Slack{Early: time.Millisecond, Late: 300 * time.Millisecond})
			for i, v := range violations {
				if i < 5 {
					t.Error(v)
				}
			}
			if len(n.log) < 100 {
				t.Errorf("%d packets are too few", len(n.log))
			}
		})
	}
}
