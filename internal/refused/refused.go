// Package refused counts and reports the objects of consumers that this cluster refuses. Only the consumer's users see
// why a pod is refused; what a consumer tries that it may not do is of interest to the provider's administrator too.
package refused

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/events"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/refusals"
	"github.com/entente-dev/entente/peering"
)

// Config configures a Log.
type Config struct {
	// Find returns the ForeignCluster of a consumer, nil if there is none. Required.
	Find func(context.Context, peering.ClusterID) (*v1alpha1.ForeignCluster, error)
	// Events takes the events. Required.
	Events events.EventRecorder
	// Log takes what events say. Required.
	Log *slog.Logger
}

// Log counts refusals by consumer and reason, and reports them in events of the consumers' ForeignClusters. What it
// keeps is bounded for each consumer, and it keeps nothing of those that are not known any more.
type Log struct {
	cfg  Config
	seed maphash.Seed
	// refused is the metric.
	refused *prometheus.Desc

	mu    sync.Mutex
	peers map[peering.ClusterID]*consumer
}

// consumer is what was refused of one consumer.
type consumer struct {
	counts  map[string]uint64
	reports map[string]*report
}

type object struct {
	kind  peering.Kind
	shown refusals.Shown
	last  time.Time
}

// report is what the next event of a reason says. Each reason has room of its own, so that none hides another.
type report struct {
	// objects are those that are refused and not reported yet.
	objects map[uint64]*object
	example string
	since   time.Time // zero if there is nothing to report
	last    time.Time // when the last event was written
}

// New returns a Log.
func New(cfg Config) *Log {
	return &Log{
		cfg: cfg, seed: maphash.MakeSeed(), peers: map[peering.ClusterID]*consumer{},
		refused: prometheus.NewDesc("entente_objects_refused_total", "Refusals of objects of a consumer, each retry counted.", []string{"peer", "reason"}, nil),
	}
}

// Applied records what became of an object that a consumer sent: err is a *peering.Refusal if it is refused, and any
// other error is not recorded.
func (l *Log) Applied(peer peering.ClusterID, ref peering.ObjectRef, err error, now time.Time) {
	var why *peering.Refusal
	if err != nil && !errors.As(err, &why) || peer == "" {
		return
	}
	key := maphash.Comparable(l.seed, ref)
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.peers[peer]
	if why == nil {
		if c != nil {
			for _, r := range c.reports {
				delete(r.objects, key)
			}
		}
		return
	}
	if c == nil {
		c = &consumer{counts: map[string]uint64{}, reports: map[string]*report{}}
		l.peers[peer] = c
	}
	c.refuse(key, ref.Kind, why, now)
}

func (c *consumer) refuse(key uint64, kind peering.Kind, why *peering.Refusal, now time.Time) {
	reason := why.Reason.Condition()
	c.counts[reason]++
	r := c.reports[reason]
	if r == nil {
		r = &report{objects: map[uint64]*object{}}
		c.reports[reason] = r
	}
	o := r.objects[key]
	if o == nil {
		if len(r.objects) >= maxObjects {
			return
		}
		o = &object{kind: kind}
		r.objects[key] = o
	}
	o.last = now
	// Its message is kept once for all objects.
	o.shown.Set(kind, &peering.Refusal{Reason: why.Reason, Retryable: why.Retryable}, now)
	if o.shown.Why() == nil {
		return // it mostly passes by itself
	}
	if r.since.IsZero() {
		r.since = now
	}
	r.example = peering.Text(why.Message, maxExample)
}

// Run reports refusals until ctx ends.
func (l *Log) Run(ctx context.Context) error {
	notify.Each(ctx, gather, func() { l.report(ctx, time.Now()) })
	return nil
}

// report writes the events that are due, and forgets consumers that are not known any more.
func (l *Log) report(ctx context.Context, now time.Time) {
	l.mu.Lock()
	peers := slices.Collect(maps.Keys(l.peers))
	l.mu.Unlock()
	for _, peer := range peers {
		fc, err := l.cfg.Find(ctx, peer)
		if err != nil {
			continue // the next round has it
		}
		l.mu.Lock()
		if fc == nil {
			delete(l.peers, peer)
			l.mu.Unlock()
			continue
		}
		due := l.peers[peer].due(now)
		l.mu.Unlock()
		for _, d := range due {
			l.cfg.Log.Info("objects of a consumer were refused", "peer", fc.Name, "reason", d.reason, "objects", d.objects, "within", d.within, "example", d.example)
			// Without an action of its own, events of another reason would be counted as this one.
			l.cfg.Events.Eventf(fc, nil, kindOf(d.reason), "ObjectsRefused", "Refuse"+d.reason, "%s", d.note(fc.Name))
		}
	}
}

// kindOf is the type of an event: asking for more than a contract has is usual.
func kindOf(reason string) string {
	if reason == peering.RefusedQuota.Condition() || reason == peering.RefusedContract.Condition() {
		return corev1.EventTypeNormal
	}
	return corev1.EventTypeWarning
}

// summary is what an event says.
type summary struct {
	reason, example, noun string
	objects               int
	within                time.Duration
}

func (s summary) note(peer string) string {
	count := fmt.Sprint(s.objects)
	switch {
	case s.objects >= maxObjects:
		count += " or more"
	case s.objects == 1:
		s.noun = s.noun[:len(s.noun)-1]
	}
	return fmt.Sprintf("%s: %s %s of %s refused within %d min, the last one: %s", s.reason, count, s.noun, peer, int((s.within+time.Minute-1)/time.Minute), s.example)
}

// due returns the summaries that are due, and forgets what they are about.
func (c *consumer) due(now time.Time) []summary {
	var out []summary
	for _, reason := range slices.Sorted(maps.Keys(c.reports)) {
		r := c.reports[reason]
		// What was refused for a moment and not sent again leaves room for others.
		maps.DeleteFunc(r.objects, func(_ uint64, o *object) bool { return now.Sub(o.last) > 2*reportEvery })
		if r.since.IsZero() || now.Sub(r.last) < reportEvery {
			continue
		}
		s := summary{reason: reason, example: r.example, noun: "pods", within: max(now.Sub(r.since), time.Minute)}
		for key, o := range r.objects {
			if o.shown.Why() == nil {
				continue
			}
			if o.kind != peering.KindPod {
				s.noun = "objects"
			}
			s.objects++
			delete(r.objects, key)
		}
		*r = report{objects: r.objects, last: now}
		if s.objects > 0 { // else all were applied meanwhile
			out = append(out, s)
		}
	}
	return out
}

// Describe implements prometheus.Collector.
func (l *Log) Describe(out chan<- *prometheus.Desc) { out <- l.refused }

// Collect implements prometheus.Collector.
func (l *Log) Collect(out chan<- prometheus.Metric) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for peer, c := range l.peers {
		for reason, n := range c.counts {
			out <- prometheus.MustNewConstMetric(l.refused, prometheus.CounterValue, float64(n), string(peer), reason)
		}
	}
}
