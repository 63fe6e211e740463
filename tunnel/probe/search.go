package probe

import "time"

// Search is the search for the largest packet that passes a path and back, as a value:
// packetization layer path MTU discovery (RFC 8899) with probes of our own. Sizes are those of
// packets inside the tunnel, in bytes. The zero value knows nothing.
//
// It trusts the network at first: what the way to the endpoint allows is used until three probes
// of that size in a row are lost while small ones are answered. Then what IPv6 needs is used until
// a larger one is answered, and if that is lost as well, the least size.
type Search struct {
	// bound is the largest size that is tried.
	bound int
	// floor is the largest size that was answered, ceiling the smallest that was not. Zero means that
	// no such size is known.
	floor, ceiling int
	// lost is how many probes of the size that is tried were lost in a row.
	lost int
	// awaited is the size of the probe whose answer is awaited; zero means none. sent is
	// when the last probe was sent. late is the size of the last one that was given up.
	awaited int
	sent    time.Time
	late    int
	// failed is when a size was last found not to pass, raised how often larger ones were tried again since the
	// largest one was answered or one that is in use was lost.
	failed time.Time
	raised int
	// confirmed is when the last probe that was answered was sent, confirming says that the size that is used is
	// being confirmed while larger ones are tried.
	confirmed  time.Time
	confirming bool
}

const (
	// searchLoss is how many probes of a size are lost in a row when it does not pass.
	searchLoss = 3
	// searchStep is what WireGuard pads packets to a multiple of: only these sizes differ.
	searchStep = 16
	// searchSoon is when what did not pass is tried again: it may have been lost for another reason than its
	// size, or on a way that was used for a moment. Each time that it is lost again the pause is twice as long, up to
	// searchAgain (PMTU_RAISE_TIMER of RFC 8899). Until it is answered the smaller size stays in use.
	searchSoon  = 30 * time.Second
	searchAgain = 10 * time.Minute
	// confirmEvery is how often the size that is used is confirmed.
	confirmEvery = 5 * time.Second
)

// Bounded returns the search on a path that no packets larger than bound pass, as the network says. It
// starts over when bound changes; the first time it starts from last, the size that was known to pass
// before this process began.
func (s Search) Bounded(bound, last int) Search {
	bound = max(bound, LeastMTU)
	switch {
	case bound == s.bound:
		return s
	case s.bound == 0 && last >= LeastMTU && last < bound:
		return Search{bound: bound, floor: last, ceiling: bound + 1}
	}
	return Search{bound: bound}
}

// MTU returns the size to use; zero means that no size is known yet.
func (s Search) MTU() int {
	if s.ceiling == 0 {
		return s.bound
	}
	if s.floor == 0 {
		return s.candidate()
	}
	return s.floor
}

// Blocked reports whether not even the least size passes.
func (s Search) Blocked() bool { return s.ceiling > 0 && s.ceiling <= LeastMTU }

// Narrow reports whether packets of the size that IPv6 needs are lost.
func (s Search) Narrow() bool { return s.bound > 0 && s.MTU() < MinMTU }

// Next returns the size of the probe that is due; zero means that none is.
func (s Search) Next(now time.Time) int {
	if s.bound == 0 || s.awaited != 0 {
		return 0
	}
	next := s.candidate()
	switch {
	case s.floor > 0 && next > s.floor && (s.confirming || s.lost == 0 && now.Sub(s.confirmed) >= confirmEvery):
		return s.floor
	case (next == s.floor && s.lost == 0 || s.Blocked()) && now.Sub(s.sent) < confirmEvery:
		return 0
	}
	return next
}

// candidate is the size to try.
func (s Search) candidate() int {
	switch {
	case s.ceiling == 0:
		return s.bound
	case s.floor == 0 && s.ceiling > MinMTU:
		return MinMTU
	case s.floor == 0:
		return LeastMTU
	case s.floor < s.bound && s.ceiling > s.bound:
		return s.bound
	}
	middle := s.floor + (s.ceiling-s.floor)/2
	for _, next := range []int{middle - middle%searchStep, s.floor - s.floor%searchStep + searchStep} {
		if next > s.floor && next < s.ceiling {
			return next
		}
	}
	return s.floor
}

// Sent notes that a probe of this size was sent.
func (s Search) Sent(size int, now time.Time) Search {
	s.awaited, s.sent, s.confirming = size, now, size == s.floor
	return s
}

// Stalled notes that this process was not scheduled between two times: an answer that arrived meanwhile was not read.
func (s Search) Stalled(from, to time.Time, patience time.Duration) Search {
	if s.awaited != 0 && from.Sub(s.sent) < patience {
		s.sent = s.sent.Add(to.Sub(from))
	}
	return s
}

// Answered notes the answer to a probe of this size, which may be late: the size passes nevertheless. Any other answer
// changes nothing.
func (s Search) Answered(size int) Search {
	switch {
	case size == 0 || size != s.awaited && size != s.late:
		return s
	case size == s.awaited:
		s.awaited, s.confirmed, s.confirming = 0, s.sent, false
	}
	s.lost, s.late, s.floor = 0, 0, max(s.floor, size)
	if s.ceiling > 0 && s.ceiling <= s.floor { // it passes again
		s.ceiling = s.bound + 1
	}
	if s.floor == s.bound {
		s.raised = 0
	}
	return s
}

// pause is for how long sizes that did not pass are not tried again.
func (s Search) pause() time.Duration {
	pause := searchSoon
	for range s.raised {
		if pause *= 2; pause >= searchAgain {
			return searchAgain
		}
	}
	return pause
}

// Elapsed gives up the probe that was not answered within patience. up says whether small probes are
// answered; if they are not, the loss does not count.
func (s Search) Elapsed(now time.Time, patience time.Duration, up bool) Search {
	if s.awaited != 0 && now.Sub(s.sent) >= patience {
		size := s.awaited
		s.awaited, s.late = 0, size
		if s.lost++; !up {
			s.lost = 0
		}
		if s.lost >= searchLoss {
			s.lost, s.ceiling, s.failed, s.confirming = 0, size, now, false
			if s.floor >= size { // it passed before
				s.floor, s.raised = 0, 0
			}
		}
	}
	if s.floor > 0 && s.ceiling > 0 && s.ceiling <= s.bound && now.Sub(s.failed) >= s.pause() {
		s.ceiling, s.failed = s.bound+1, now
		s.raised++
	}
	return s
}
