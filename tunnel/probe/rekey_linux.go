package probe

import (
	"net/netip"
	"slices"
	"time"
)

// rekeying is the state of the messages between this node and another about keys.
type rekeying struct {
	// follow is when to use the other node's next key as its current one. Its time is zero once that was done,
	// and it is cleared when the targets are set after that. off is when that node last called it off.
	follow Follow
	off    time.Time
	// confirmed is the key of this node that the other one last confirmed to follow, at confirmedAt.
	confirmed   KeyTag
	confirmedAt time.Time
	// messages is how many messages were received in the second from counted.
	messages int
	counted  time.Time
}

func (p *Prober) receiveRekey(from netip.Addr, r rekey, now time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.tracked[from]
	if s == nil {
		return
	}
	k := &s.rekey
	if now.Sub(k.counted) >= time.Second {
		k.messages, k.counted = 0, now
	}
	if k.messages++; k.messages > rekeysPerSecond {
		return
	}
	switch r.kind {
	case rekeyAsk:
		follow, ok := k.follow.asked(r, s.target.NextKey, now)
		if !ok || r.in > 0 && (p.busy || now.Sub(k.off) < rekeyOffPause || p.isPromised(from, r.key)) {
			return
		}
		p.write(from, rekey{kind: rekeyFollow, in: r.in, key: r.key}.encode())
		if follow != k.follow {
			k.follow, p.promised[r.key] = follow, from
			p.due(follow.At)
		}
	case rekeyFollow:
		if r.key == p.replaces {
			k.confirmed, k.confirmedAt = r.key, now
		}
	case rekeyOff:
		if r.key == k.follow.Key && !k.follow.At.IsZero() {
			k.follow, k.off = Follow{}, now
		}
	}
}

// isPromised reports whether this node is about to follow another one to the same key, or has just done so. Then
// it cannot follow a second one, and must not confirm that it will.
func (p *Prober) isPromised(from netip.Addr, key KeyTag) bool {
	other := p.promised[key]
	s := p.tracked[other]
	return other != from && s != nil && s.rekey.follow.Key == key
}

// settleLocked forgets whom this node has followed: the targets show what came of it.
func (p *Prober) settleLocked() {
	clear(p.promised)
	for a, s := range p.tracked {
		if s.rekey.follow.At.IsZero() {
			s.rekey.follow = Follow{}
		} else {
			p.promised[s.rekey.follow.Key] = a
		}
	}
}

// Ask announces to all nodes whose paths work that this node replaces its key by the one with a tag,
// after in, or asks whether they know that key if in is 0.
func (p *Prober) Ask(key KeyTag, in time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replaces = key
	p.broadcastLocked(rekey{kind: rekeyAsk, in: in, key: key})
}

// CallOff announces to the same nodes that this node does not replace its key now.
func (p *Prober) CallOff(key KeyTag) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broadcastLocked(rekey{kind: rekeyOff, key: key})
}

func (p *Prober) broadcastLocked(r rekey) {
	for a, s := range p.tracked {
		if s.State == PathUp {
			p.write(a, r.encode())
		}
	}
}

// BeginReplacing has this node follow no other one until EndReplacing, since it is about to replace its own key. If it
// will follow another one soon it changes nothing and returns that one, unless it has waited for others for
// rekeyPatience, or is to do so regardless of them.
func (p *Prober) BeginReplacing(now time.Time, regardless bool) (other netip.Addr, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, s := range p.tracked {
		if !s.rekey.follow.At.IsZero() && (!other.IsValid() || a.Less(other)) {
			other = a
		}
	}
	if now.Sub(p.waited) >= rekeyPatience { // for another key, or never
		p.waits = now
	}
	p.waited = now
	if other.IsValid() && !regardless && now.Sub(p.waits) < rekeyPatience {
		return other, false
	}
	p.busy, p.waited = true, time.Time{}
	return netip.Addr{}, true
}

// EndReplacing ends what BeginReplacing began.
func (p *Prober) EndReplacing() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.busy = false
}

// Unready returns the nodes whose paths work and that have not confirmed, since a time, that they
// follow this node to a key.
func (p *Prober) Unready(key KeyTag, since time.Time) (out []netip.Addr) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, s := range p.tracked {
		if s.State == PathUp && (s.rekey.confirmed != key || s.rekey.confirmedAt.Before(since)) {
			out = append(out, a)
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return out
}

// Due returns the nodes whose next key takes the place of their current one by now, and when the next
// such node is due; the zero time means never.
func (p *Prober) Due(now time.Time) (due []netip.Addr, next time.Time) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for a, s := range p.tracked {
		at := s.rekey.follow.At
		switch {
		case at.IsZero():
		case !at.After(now):
			due = append(due, a)
			s.rekey.follow.At = time.Time{}
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
	if s := p.tracked[to]; s != nil {
		p.send(to, probe{carries: s.target.Carries, seq: s.Path.Next()}, probeLen)
		s.Path = s.Path.Sent(now)
	}
}
