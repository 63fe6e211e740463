// Package meter counts what is used of a contract, period by period.
package meter

import (
	"time"

	"github.com/entente-dev/entente/peering"
)

// Meter counts use, period by period. It is a value; only its value at the last observation has
// to be kept.
type Meter struct {
	// Since is when the current period began, in whole seconds.
	Since time.Time
	// Period is how long each period lasts, in whole seconds.
	Period time.Duration
	// Sequence is how many periods have ended.
	Sequence uint64
	// Until is the time up to which it counted, in whole milliseconds.
	Until time.Time
	// Using is what was in use at Until.
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

// New returns a meter that counts from begin on. A shorter period than peering.MinStatementPeriod
// becomes that.
func New(begin time.Time, period time.Duration) Meter {
	begin = wholeSecond(begin)
	return Meter{Since: begin, Period: max(period.Truncate(time.Second), peering.MinStatementPeriod), Until: begin}
}

// Observe sets what is in use from now on. It counts what was in use since the last observation
// and returns the periods that ended meanwhile, at most peering.MaxPeriods: if it returns that
// many, observe again for the rest.
//
// If the last observation is longer ago than peering.MaxSample, the use in between is not known.
// Then the lesser of the amounts in use before and now counts for each resource, so that what is
// counted was surely used. Time that goes back adds nothing, and no time is counted twice.
func (m Meter) Observe(now time.Time, using peering.Resources) (Meter, []Period) {
	return m.count(meterTime(now), using)
}

// End is Observe at the end of metering: nothing is in use any more, and the current period ends
// too, complete or not. Calling it again returns no more periods. The end is cut to whole
// seconds; if more than that was counted, it is the next whole second.
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
			return m, ended // more periods are left to count, with the use up to then
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

// end is when the current period ends. If periods became shorter meanwhile, it ends no earlier
// than Until.
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

// meterTime makes times that differ by less than a millisecond the same, so that counting in two
// steps has the same result as in one.
func meterTime(t time.Time) time.Time { return t.Round(0).UTC().Truncate(time.Millisecond) }
