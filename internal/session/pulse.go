package session

import "time"

// pulse is what is known of a session when it is looked after. Times that are zero
// have not come.
type pulse struct {
	// since is when the session came up, end when it ends unless the peer shows
	// another certificate.
	since, end time.Time
	// open says that there is a control stream.
	open bool
	// heard is when a message came on it last, answered when the last question was
	// answered, asked when the one was asked that is open.
	heard, answered, asked time.Time
	// read is when any byte came from the peer last, for as long as a question is open.
	read time.Time
	// shown says that the peer was shown this side's leaf of the moment.
	shown bool
	// busy says that a message is on its way to the peer. Whoever sends it looks again
	// after that.
	busy bool
}

// pace is how often a session is looked after, and how long it waits: the limits of
// these names.
type pace struct{ open, quiet, measure, answer, behind time.Duration }

func paceOf(dialled bool) pace {
	p := pace{open: openTimeout, quiet: quietAfter, measure: measureEvery, answer: answerTimeout, behind: answerBehind}
	if dialled {
		p.quiet = quietAfterDialled
	}
	return p
}

// ending is why a session has to end, as far as its pulse tells.
type ending int

const (
	goesOn ending = iota
	// hasExpired: the peer's certificate ended and it showed no other.
	hasExpired
	// isSilent: the open question was not answered.
	isSilent
	// isUnopened: the peer did not open the control stream.
	isUnopened
)

// care is what is due for a session.
type care struct {
	ending ending
	// ask says to ask a question, show to prove this side with its new leaf.
	ask, show bool
	// next is when to look again: not before, if nothing changes, and at once if
	// something is due.
	next time.Time
}

// due says what is due. An answer that comes behind much else may take longer, for as
// long as that comes. Any message counts as a sign of life as long as no question
// is open; then only its answer does, since that alone shows that the peer hears
// this side, too.
func (p pulse) due(now time.Time, c pace) care {
	d := care{next: p.end, show: p.open && !p.shown && !p.busy}
	by := p.end
	switch {
	case !p.open:
		by = p.since.Add(c.open)
		d.ending = isUnopened
	case !p.asked.IsZero():
		by = later(p.asked.Add(c.answer), earlier(p.read.Add(c.answer), p.asked.Add(c.behind)))
		d.ending = isSilent
	case p.busy:
	case p.answered.IsZero():
		by = now
		d.ask = true
	default:
		by = earlier(p.heard.Add(c.quiet), p.answered.Add(c.measure))
		d.ask = true
	}
	if now.Before(by) {
		d.ending, d.ask = goesOn, false
	}
	if !now.Before(p.end) {
		d.ending = hasExpired
	}
	d.next = earlier(by, p.end)
	if d.show {
		d.next = earlier(now, d.next)
	}
	return d
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}
