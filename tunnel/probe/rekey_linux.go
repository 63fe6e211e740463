package probe

import (
	"net/netip"
	"slices"
	"time"
)

// rekeying is what was said between this node and another about keys.
type rekeying struct {
	// follow is when to take the other's next key for its own.
	follow Follow
	// said is which key of this node it said last that it will follow, and when.
	said   KeyTag
	saidAt time.Time
	// words is how many words were heard in the second from counted.
	words   int
	counted time.Time
}

func (p *Prober) heardRekey(from netip.Addr, r rekey, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.sights[from]
	if s == nil {
		return
	}
	k := &s.rekey
	if now.Sub(k.counted) >= time.Second {
		k.words, k.counted = 0, now
	}
	if k.words++; k.words > rekeysPerSecond {
		return
	}
	switch r.word {
	case rekeyAsk:
		follow, ok := k.follow.asked(r, s.target.NextKey, now)
		if !ok || p.busy && r.in > 0 {
			return
		}
		p.write(from, rekey{word: rekeyFollow, in: r.in, key: r.key}.encode())
		if follow != k.follow {
			k.follow = follow
			p.due(follow.At)
		}
	case rekeyFollow:
		if r.key == p.replaces {
			k.said, k.saidAt = r.key, now
		}
	case rekeyOff:
		if r.key == k.follow.Key {
			k.follow = Follow{}
		}
	}
}

// Ask tells all nodes whose ways work that this node replaces its key by the one with a tag: in so
// long, or at some time if that is 0.
func (p *Prober) Ask(key KeyTag, in time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replaces = key
	p.sayLocked(rekey{word: rekeyAsk, in: in, key: key})
}

// CallOff tells all that it does not do so now.
func (p *Prober) CallOff(key KeyTag) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sayLocked(rekey{word: rekeyOff, key: key})
}

func (p *Prober) sayLocked(r rekey) {
	for a, s := range p.sights {
		if s.State == PathUp {
			p.write(a, r.encode())
		}
	}
}

// SetBusy says whether this node follows nobody for now, since it is about to replace its own
// key. It returns false, and is not, if it is to follow somebody soon.
func (p *Prober) SetBusy(busy bool) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if busy {
		for _, s := range p.sights {
			if !s.rekey.follow.At.IsZero() {
				return false
			}
		}
	}
	p.busy = busy
	return true
}

// Unready returns the nodes whose ways work and that did not say, since a time, that they
// follow this node to a key.
func (p *Prober) Unready(key KeyTag, since time.Time) (out []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, s := range p.sights {
		if s.State == PathUp && (s.rekey.said != key || s.rekey.saidAt.Before(since)) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// Due returns the nodes whose next key is to be taken for their own by now, and when the next
// one is; the zero time is never.
func (p *Prober) Due(now time.Time) (due []netip.Addr, next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, s := range p.sights {
		at := s.rekey.follow.At
		switch {
		case at.IsZero():
		case !at.After(now):
			due = append(due, a)
			s.rekey.follow = Follow{}
		case next.IsZero() || at.Before(next):
			next = at
		}
	}
	slices.SortFunc(due, netip.Addr.Compare)
	return due, next
}

// Nudge sends a probe to a node at once, which makes the device begin a handshake if it has none.
func (p *Prober) Nudge(to netip.Addr, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if s := p.sights[to]; s != nil {
		p.send(to, probe{carries: s.target.Carries, seq: s.Path.Next()}, probeLen)
		s.Path = s.Path.Sent(now)
	}
}
