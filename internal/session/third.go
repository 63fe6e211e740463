package session

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/entente-dev/entente/peering"
)

// A peer that can be dialled neither at an endpoint nor in-band may be reached through a third
// peer, which carries the connection. That is the last resort: direct ways are tried all the
// time, and a carried session ends when one succeeds.

// thirds has the third peers that a dialer tried in vain.
type thirds map[peering.ClusterID]third

// third is a peer through which no session came up.
type third struct {
	failures int
	again    time.Time // it is not asked earlier
	err      error     // of the last attempt
}

// next returns the third peers to try now, in order. The order is the same at both ends, and
// differs between pairs, so that the pairs share the candidates.
func (t thirds) next(self, peer peering.ClusterID, candidates []peering.ClusterID, now time.Time) []peering.ClusterID {
	low, high := min(self, peer), max(self, peer)
	weight := func(id peering.ClusterID) []byte {
		sum := sha256.Sum256([]byte(string(low) + "\x00" + string(high) + "\x00" + string(id)))
		return sum[:]
	}
	out := slices.DeleteFunc(slices.Clone(candidates), func(id peering.ClusterID) bool {
		return id == self || id == peer || now.Before(t[id].again)
	})
	slices.SortFunc(out, func(a, b peering.ClusterID) int {
		return cmp.Or(bytes.Compare(weight(a), weight(b)), cmp.Compare(a, b))
	})
	return out[:min(len(out), thirdTries)]
}

// failed notes that no session came up through a peer.
func (t thirds) failed(id peering.ClusterID, err error, now time.Time) {
	f := t[id]
	f.again = now.Add(min(thirdBackoffMin<<min(f.failures, 16), thirdBackoffMax))
	f.failures++
	f.err = err
	t[id] = f
}

// errors returns why no session came up, through the first of the third peers that were tried. It
// returns the same while these are not asked again.
func (t thirds) errors() []error {
	var out []error
	for _, id := range slices.Sorted(maps.Keys(t))[:min(len(t), thirdTries)] {
		out = append(out, fmt.Errorf("through peer %s: %w", id, t[id].err))
	}
	return out
}

// keep removes those that are no longer candidates.
func (t thirds) keep(candidates []peering.ClusterID) {
	for id := range t {
		if !slices.Contains(candidates, id) {
			delete(t, id)
		}
	}
}

// thirdAfter is for how long a peer is dialled directly before others are asked. The side that
// yields waits longer, so that mostly one of the two asks.
func thirdAfter(self, peer peering.ClusterID) time.Duration {
	if self > peer {
		return directFirst + yieldThird
	}
	return directFirst
}

// hasDirect reports whether there is a session with a peer that no third peer carries, so that
// the peer need not be dialled.
func (m *Manager) hasDirect(id peering.ClusterID) bool {
	l := m.link(id)
	return l != nil && l.info.Through == ""
}

// candidates are the connected peers that announced that they carry sessions. others reports
// whether any peers are connected.
func (m *Manager) candidates() (carry []peering.ClusterID, others bool) {
	for _, s := range m.Sessions() {
		if s.Through != "" {
			continue
		}
		if others = true; m.cfg.Carries(s.Peer) {
			carry = append(carry, s.Peer)
		}
	}
	return carry, others
}

// errNoThird is why no third peer is asked to carry. It is the error only for peers that were
// dialled, and if other peers are connected.
var errNoThird = errors.New("through third peers: no connected peer carries sessions (set network.relay.forPeers there)")

// throughThird brings up a session with a peer through a third one. The errors say why no session
// came up.
func (m *Manager) throughThird(ctx context.Context, id peering.ClusterID, tried thirds) (*link, []error) {
	if m.cfg.DialThrough == nil || m.link(id) != nil {
		return nil, nil
	}
	candidates, others := m.candidates()
	tried.keep(candidates)
	if len(candidates) == 0 && others && m.dialled(id) {
		return nil, []error{errNoThird}
	}
	for _, third := range tried.next(m.self, id, candidates, time.Now()) {
		l, err := m.dialThrough(ctx, id, third)
		if l != nil {
			delete(tried, third)
			return l, nil
		}
		if m.link(id) != nil || ctx.Err() != nil {
			return nil, nil
		}
		tried.failed(third, err, time.Now())
	}
	return nil, tried.errors()
}

// dialled reports whether a peer can be dialled directly.
func (m *Manager) dialled(id peering.ClusterID) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.peers[id].Endpoints) > 0 || m.peers[id].InBand
}

func (m *Manager) dialThrough(ctx context.Context, id, third peering.ClusterID) (*link, error) {
	ctx, cancel := context.WithTimeout(ctx, thirdTimeout)
	defer cancel()
	raw, err := m.cfg.DialThrough(ctx, third, id)
	if err != nil {
		return nil, err
	}
	l, err := m.shake(ctx, raw, Info{Peer: id, Through: third}, "")
	if err != nil {
		_ = raw.Close()
		return nil, err
	}
	return l, nil
}

// dialThird reaches a peer through a third one once the direct ways failed for long enough. The
// session lives as long as run; dialling goes on beside it.
func (m *Manager) dialThird(ctx, run context.Context, wg *sync.WaitGroup, id peering.ClusterID, d *dialer) []error {
	if time.Since(d.began) < thirdAfter(m.self, id) {
		return nil
	}
	l, failures := m.throughThird(ctx, id, d.thirds)
	if l != nil {
		if ctx.Err() != nil {
			m.CloseSession(l.info.Number, errStopping)
		}
		m.serve(run, wg, l)
	}
	return failures
}

// errOnlySessions refuses a carried connection that is not a session: a cluster that is not
// trusted has to connect itself.
var errOnlySessions = errors.New("only sessions are carried by third peers")

// cameBy returns the peer that carries a connection, if one does.
func cameBy(raw net.Conn) peering.ClusterID {
	if by, ok := raw.(interface{ Through() string }); ok {
		return peering.ClusterID(by.Through())
	}
	return ""
}
