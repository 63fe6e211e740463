package podmetrics

import (
	"time"

	"github.com/entente-dev/entente/peering"
)

// sample is what was measured of a container, or of all of a node, in this cluster's time.
type sample struct {
	time   time.Time
	window time.Duration
	// nanocores is the average over the window.
	nanocores uint64
	memory    uint64
}

// counter is the CPU time that a container took since it was measured first. Whoever reads a
// kubelet compares two of these, and gets the averages that were measured.
type counter struct {
	// start is when nothing was counted yet.
	start time.Time
	// cpu is in billionths of a second of a core.
	cpu float64
	// last is the latest sample; its time is that of cpu.
	last sample
}

// begun is what a counter has at its start: a process that runs has taken some CPU time, and
// metrics-server takes a container with none for one that was not measured.
const begun = float64(time.Microsecond)

// add counts a sample. One that is not later than the last says nothing new.
//
// Windows of samples may overlap, or leave a gap where one was missed. The average of the
// later sample stands for all the time since the one before: then the counter's slope is
// what was measured, and it never falls.
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

// fresh says whether the latest sample may be shown.
func (c counter) fresh(now time.Time) bool {
	return !c.last.time.IsZero() && now.Sub(c.last.time) <= maxAge
}

// beside adds what another container used lately; its CPU time is added by itself.
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

// set notes when, by this cluster's clock, an answer came that the provider gave at a time by
// its own. What the way took changes each time, so only more than clockSlack is a change: times
// between samples are then those that the provider measured.
func (c clock) set(here, there time.Time) clock {
	offset := here.Sub(there)
	if !c.known || (offset-c.offset).Abs() > clockSlack {
		return clock{offset: offset, known: true}
	}
	return c
}

// samples returns what an answer says of containers, by pod and container: what is recent, and
// not after the answer.
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
