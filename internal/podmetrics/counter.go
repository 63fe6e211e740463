package podmetrics

import (
	"time"

	"github.com/entente-dev/entente/peering"
)

// sample is a measurement of a container, or of a whole node, with a time of this cluster's clock.
type sample struct {
	time   time.Time
	window time.Duration
	// nanocores is the average over the window.
	nanocores uint64
	memory    uint64
}

// counter is the CPU time that a container used since it was first measured. A client of a kubelet
// compares two values, and gets the measured average.
type counter struct {
	// start is when the counter began.
	start time.Time
	// cpu is in billionths of a second of a core.
	cpu float64
	// last is the latest sample; cpu is the count at its time.
	last sample
}

// begun is the value at which a counter starts: a running process has used some CPU time, and
// metrics-server takes a container at 0 for one that was not measured.
const begun = float64(time.Microsecond)

// add counts a sample, unless it is no later than the last.
//
// Windows of samples may overlap, or leave a gap where one was missed. The average of the later
// sample counts for all the time since the one before: then the counter's slope is the measured
// average, and the counter never falls.
func (c counter) add(s sample) counter {
	if c.last.time.IsZero() {
		return counter{start: s.time.Add(-s.window), cpu: begun + float64(s.nanocores)*s.window.Seconds(), last: s}
	}
	if since := s.time.Sub(c.last.time); since > 0 {
		c.cpu += float64(s.nanocores) * since.Seconds()
		c.last = s
	}
	return c
}

// seconds is the counter in seconds of a core.
func (c counter) seconds() float64 { return c.cpu / float64(time.Second) }

// fresh reports whether the latest sample may be shown.
func (c counter) fresh(now time.Time) bool {
	return !c.last.time.IsZero() && now.Sub(c.last.time) <= maxAge
}

// beside adds the latest sample of another container, but not its CPU time.
func (c counter) beside(o counter) counter {
	c.last.nanocores += o.last.nanocores
	c.last.memory += o.last.memory
	if o.last.time.After(c.last.time) {
		c.last.time = o.last.time
	}
	if c.start.IsZero() || o.start.Before(c.start) {
		c.start = o.start
	}
	return c
}

// clock translates a provider's times.
type clock struct {
	offset time.Duration
	known  bool
}

// set updates the clock for a response that the provider sent at there, by its clock, and that
// arrived at here, by ours. The latency varies, so only a difference of more than clockSlack is a
// change: that keeps the times between samples as the provider measured them.
func (c clock) set(here, there time.Time) clock {
	offset := here.Sub(there)
	if !c.known || (offset-c.offset).Abs() > clockSlack {
		return clock{offset: offset, known: true}
	}
	return c
}

// samples returns the samples of a response, by pod and container, without those that are old or
// later than the response.
func (c clock) samples(m peering.ContractMetrics) map[container]sample {
	out := make(map[container]sample)
	for _, pod := range m.Pods {
		if age := m.Time.Sub(pod.Time); age > maxAge || age < -clockSlack {
			continue
		}
		for _, one := range pod.Containers {
			out[container{pod.UID, one.Name}] = sample{
				time: pod.Time.Add(c.offset), window: pod.Window, nanocores: one.Nanocores, memory: one.Memory,
			}
		}
	}
	return out
}

// container names a container of a pod.
type container struct{ uid, name string }
