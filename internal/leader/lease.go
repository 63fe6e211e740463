package leader

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/uuid"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

// Timing is when a lease is renewed, given up and taken.
type Timing struct {
	// Duration is how long an agent in another pod waits after the leader died. It counts from the last renewal
	// that the agent saw, which it checks each Retry to twice that.
	Duration time.Duration
	// Deadline is how long a leader may fail to renew its lease before it ends.
	Deadline time.Duration
	// Retry is the pause between two renewals, and between two checks.
	Retry time.Duration
}

// TimingOf returns the timing of a lease. A quarter of it remains for a leader that has to end.
func TimingOf(duration time.Duration) Timing {
	return Timing{Duration: duration, Deadline: duration * 3 / 4, Retry: duration / 12}
}

// Config is the configuration of a Lease.
type Config struct {
	// Kubernetes is how to reach the API server. Required.
	Kubernetes *rest.Config
	// Namespace and Name are those of the Lease. Required.
	Namespace, Name string
	// Pod and PodUID identify this agent. A process that follows another one in the same pod has the same identity:
	// a container is restarted only when its last process is dead, so it takes its own lease back at once instead
	// of waiting for its end. Without a UID each process has another identity.
	Pod, PodUID string
	Timing      Timing
}

// Lease is the lock by which one agent leads. It is a resourcelock.Interface that knows until when this agent may
// act.
type Lease struct {
	resourcelock.Interface

	duration time.Duration
	now      func() time.Time

	mu sync.Mutex
	// stopped is why this agent no longer acts, whichever agent has the lease.
	stopped error
	// led: this process had the lease; until is when it ends unless it is renewed.
	led   bool
	until time.Time
	// other: another agent had it when it was last read, at seen.
	other bool
	seen  time.Time
}

// New returns the lease of an agent, which does not have it yet.
func New(cfg Config) (*Lease, error) {
	limited := rest.CopyConfig(cfg.Kubernetes)
	limited.Timeout = cfg.Timing.Deadline / 2 // so that there are two tries
	client, err := kubernetes.NewForConfig(rest.AddUserAgent(limited, "leader-election"))
	if err != nil {
		return nil, fmt.Errorf("reach the API server for lease %s: %w", cfg.Name, err)
	}
	return newLease(cfg, client), nil
}

func newLease(cfg Config, client kubernetes.Interface) *Lease {
	uid := cmp.Or(cfg.PodUID, string(uuid.NewUUID()))
	return &Lease{duration: cfg.Timing.Duration, now: time.Now, Interface: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: cfg.Namespace, Name: cfg.Name},
		Client:     client.CoordinationV1(),
		LockConfig: resourcelock.ResourceLockConfig{Identity: cfg.Pod + "_" + uid},
	}}
}

// Get implements resourcelock.Interface.
func (l *Lease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	record, raw, err := l.Interface.Get(ctx)
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil {
		l.other, l.seen = record.HolderIdentity != "" && record.HolderIdentity != l.Identity(), l.now()
	}
	return record, raw, err
}

// Create implements resourcelock.Interface.
func (l *Lease) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Create(ctx, record) })
}

// Update implements resourcelock.Interface.
func (l *Lease) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.write(record, func() error { return l.Interface.Update(ctx, record) })
}

// write records what a write of the lease means for this agent: a renewal counts from before it is sent, and when
// the agent gives the lease up it stops acting before that is sent.
func (l *Lease) write(record resourcelock.LeaderElectionRecord, send func() error) error {
	own := record.HolderIdentity == l.Identity()
	began := l.now()
	if !own {
		l.mu.Lock()
		l.until = time.Time{}
		l.mu.Unlock()
	}
	if err := send(); err != nil {
		return err
	}
	if own {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.led, l.until, l.other = true, began.Add(l.duration), false
	}
	return nil
}

// Follows reports whether another agent leads, as this one saw within the length of a lease.
func (l *Lease) Follows() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.other && l.now().Sub(l.seen) < l.duration
}

// errEnded means that this agent's lease ended.
var errEnded = errors.New("this agent's lease ended, so another one may lead")

// Stop keeps this agent from changing anything more, for a reason.
func (l *Lease) Stop(why error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopped = why
}

// Check returns why this agent may not act: it was stopped, or it led and another agent may have the lease now,
// which is errEnded. An agent that has not led yet may act, as it changes only its own objects.
func (l *Lease) Check() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopped != nil {
		return l.stopped
	}
	if l.led && !l.now().Before(l.until) {
		return errEnded
	}
	return nil
}

// Fence returns a transport that refuses requests which change anything once the lease ended, or the agent was
// stopped. An agent ends when it cannot renew its lease; but one whose process was stopped, or whose machine slept,
// continues in the middle of what it did.
func (l *Lease) Fence(next http.RoundTripper) http.RoundTripper { return &fence{lease: l, next: next} }

type fence struct {
	lease *Lease
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (f *fence) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		if err := f.lease.Check(); err != nil {
			if r.Body != nil {
				_ = r.Body.Close()
			}
			return nil, fmt.Errorf("%s %s: %w", r.Method, r.URL.Path, err)
		}
	}
	return f.next.RoundTrip(r)
}

// WrappedRoundTripper lets libraries find the wrapped transport.
func (f *fence) WrappedRoundTripper() http.RoundTripper { return f.next }
