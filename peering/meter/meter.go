// Package meter counts what is used of a contract, period by period.
package meter

import (
	"time"

	"github.com/entente-dev/entente/peering"
)

// Meter counts use, period by period. It is a value; what it was at the last
// observation is all that has to be kept.
type Meter struct {
	// Since is when the current period began, in whole seconds.
	Since time.Time
	// Period is how long each lasts, in whole seconds.
	Period time.Duration
	// Sequence is how many periods have ended.
	Sequence uint64
	// Until is up to when it counted, in whole milliseconds.
	Until time.Time
	// Using is what was in use then.
	Using peering.Resources
	// Used is what was used in the current period.
	Used peering.Usage
}

// Period is what was used in a period that ended.
type Period struct {
	// Sequence counts periods from 1.
	Sequence uint64
	From, To time.Time
	Used     peering.Usage
}

// New returns a meter that counts from begin on. A period below
// peering.MinStatementPeriod counts as that.
func New(begin time.Time, period time.Duration) Meter {
	begin = wholeSecond(begin)
	return Meter{Since: begin, Period: max(period.Truncate(time.Second), peering.MinStatementPeriod), Until: begin}
}

// Observe says what is in use from now on. It counts what was in use since the
// last observation and returns the periods that ended meanwhile, at most
// peering.MaxPeriods: if as many as that are returned, observe again for the rest.
//
// If the last observation is longer than peering.MaxSample ago nobody was watching. Then
// of each resource the lesser of what was in use before and now counts, so that
// what is counted was surely used. Time that goes back adds nothing, nor is
// anything counted twice when it comes again.
func (m Meter) Observe(now time.Time, using peering.Resources) (Meter, []Period) {
	return m.count(meterTime(now), using)
}

// End is Observe at the end of what is counted: nothing is in use any more, and
// the current period ends too, whole or not. To say it again returns nothing more.
// The end is cut to whole seconds; if more than that was counted, it is the next
// whole second after.
func (m Meter) End(at time.Time) (Meter, []Period) {
	at = wholeSecond(at)
	if at.Before(m.Until) {
		at = wholeAfter(m.Until)
	}
	m, ended := m.count(at, nil)
	if len(ended) == peering.MaxPeriods || !m.Since.Before(at) {
		return m, ended
	}
	m, last := m.close(at)
	return m, append(ended, last)
}

// count is Observe for a time in milliseconds.
func (m Meter) count(now time.Time, using peering.Resources) (Meter, []Period) {
	if now.Sub(m.Until) > peering.MaxSample {
		m.Using = lesser(m.Using, using)
	}
	var ended []Period
	for m.Until.Before(now) {
		if len(ended) == peering.MaxPeriods {
			return m, ended // there is more to count, of what was in use until then
		}
		to := m.end()
		next := now
		if to.Before(next) {
			next = to
		}
		m.Used = m.Used.With(m.Using, next.Sub(m.Until))
		m.Until = next
		if !next.Before(to) {
			var p Period
			m, p = m.close(to)
			ended = append(ended, p)
		}
	}
	m.Using = using.Clone()
	return m, ended
}

// end is when the current period ends. If periods became shorter meanwhile, it
// ends with what was counted already.
func (m Meter) end() time.Time {
	to := m.Since.Add(m.Period)
	if to.Before(m.Until) {
		return wholeAfter(m.Until)
	}
	return to
}

// wholeAfter returns the first whole second that is not before t.
func wholeAfter(t time.Time) time.Time { return wholeSecond(t.Add(time.Second - time.Millisecond)) }

// close ends the current period.
func (m Meter) close(to time.Time) (Meter, Period) {
	p := Period{Sequence: m.Sequence + 1, From: m.Since, To: to, Used: m.Used}
	m.Sequence, m.Since, m.Used = m.Sequence+1, to, peering.Usage{}
	return m, p
}

// lesser returns the smaller amount of each resource.
func lesser(a, b peering.Resources) peering.Resources {
	r := peering.Resources{}
	for name, q := range a {
		if least := q.Min(b[name]); !least.IsZero() {
			r[name] = least
		}
	}
	return r
}

// wholeSecond makes equal instants equal values.
func wholeSecond(t time.Time) time.Time { return t.Round(0).UTC().Truncate(time.Second) }

// meterTime makes times that differ by less than a millisecond the same, so that
// counting in two steps gives what one gives.
func meterTime(t time.Time) time.Time { return t.Round(0).UTC().Truncate(time.Millisecond) }
