package leader

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
)

var timing = TimingOf(20 * time.Second)

func leaseOf(client kubernetes.Interface, uid string) *Lease {
	return newLease(Config{Namespace: "entente-system", Name: "entente-agent", Pod: "entente-agent-x", PodUID: uid, Timing: timing}, client)
}

// lead runs an agent's election until it is killed, which releases nothing.
func lead(t *testing.T, client kubernetes.Interface, uid string) (leads *atomic.Bool, kill func()) {
	t.Helper()
	leads = &atomic.Bool{}
	return leads, run(t, leaseOf(client, uid), leads, false)
}

// run runs an election until it is ended, and then gives the lease up or not.
func run(t *testing.T, lease *Lease, leads *atomic.Bool, release bool) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: lease, LeaseDuration: timing.Duration, RenewDeadline: timing.Deadline, RetryPeriod: timing.Retry, ReleaseOnCancel: release,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { leads.Store(true) }, OnStoppedLeading: func() { leads.Store(false) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { elector.Run(ctx) })
	return func() {
		cancel()
		wg.Wait()
		leads.Store(false)
	}
}

func TestAgentThatWasKilledTakesItsLeaseBackAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleClientset()
		first, kill := lead(t, client, "pod-1")
		time.Sleep(time.Minute)
		synctest.Wait()
		if !first.Load() {
			t.Fatal("the first agent does not lead")
		}
		kill()
		again, kill := lead(t, client, "pod-1")
		time.Sleep(time.Second)
		synctest.Wait()
		if !again.Load() {
			t.Error("a second after its start the same agent does not lead")
		}

		// Another pod's agent waits for as long as this one may lead.
		other, killOther := lead(t, client, "pod-2")
		time.Sleep(10 * timing.Duration)
		synctest.Wait()
		if other.Load() || !again.Load() {
			t.Errorf("of two agents the first leads %v, the second %v", again.Load(), other.Load())
		}
		kill()
		time.Sleep(timing.Duration - 2*timing.Retry)
		synctest.Wait()
		if other.Load() {
			t.Error("another pod's agent leads before the lease of the one that was killed ended")
		}
		time.Sleep(8 * timing.Retry) // retries come at up to 2.2 times their period
		synctest.Wait()
		if !other.Load() {
			t.Error("no agent leads")
		}
		// The killed one's pod comes back: its lease is another's now.
		late, killLate := lead(t, client, "pod-1")
		time.Sleep(10 * timing.Duration)
		synctest.Wait()
		if late.Load() || !other.Load() {
			t.Errorf("of two agents the one that leads leads %v, the one that comes back %v", other.Load(), late.Load())
		}
		killLate()
		killOther()
	})
}

// After a planned stop the next agent waits for one check; after a death for the lease and the delay of its checks.
func TestAnotherAgentLeadsAsSoonAsItMay(t *testing.T) {
	t.Parallel()
	for name, row := range map[string]struct {
		release bool
		within  time.Duration
	}{
		"the leader gave its lease up":        {true, 3 * timing.Retry},
		"the leader died and its pod with it": {false, timing.Duration + 5*timing.Retry},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				client := fake.NewSimpleClientset()
				var first, second atomic.Bool
				one, other := leaseOf(client, "pod-1"), leaseOf(client, "pod-2")
				end := run(t, one, &first, row.release)
				time.Sleep(time.Second)
				synctest.Wait()
				endOther := run(t, other, &second, false)
				defer endOther()
				time.Sleep(time.Minute)
				synctest.Wait()
				if !first.Load() || second.Load() || one.Follows() || !other.Follows() || one.Check() != nil || other.Check() != nil {
					t.Fatalf("the first leads %v (follows %v, %v), the second %v (follows %v, %v)", first.Load(), one.Follows(), one.Check(), second.Load(), other.Follows(), other.Check())
				}
				end()
				if err := one.Check(); row.release && !errors.Is(err, errEnded) {
					t.Errorf("with its lease given up the first may act: %v", err)
				}
				began := time.Now()
				for !second.Load() && time.Since(began) < time.Minute {
					// At no moment both may act.
					if one.Check() == nil && second.Load() {
						t.Fatal("both may act")
					}
					time.Sleep(10 * time.Millisecond)
					synctest.Wait()
				}
				took := time.Since(began)
				if !second.Load() || took > row.within {
					t.Errorf("the second leads %v after %s, want within %s", second.Load(), took, row.within)
				}
				if err := one.Check(); !errors.Is(err, errEnded) {
					t.Errorf("when another leads the first may still act: %v", err)
				}
			})
		})
	}
}

// gate is a client of the API server that fails.
func gate(client *fake.Clientset) *atomic.Bool {
	shut := &atomic.Bool{}
	client.PrependReactor("*", "leases", func(ktesting.Action) (bool, runtime.Object, error) {
		return shut.Load(), nil, errors.New("the API server does not respond")
	})
	return shut
}

// An agent that reaches its API server no longer ends before another may lead; and if it does not end,
// because it was stopped, nothing that it sends gets past the fence.
func TestWritesAreRefusedAfterTheLeaseEnded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		client := fake.NewSimpleClientset()
		lease := leaseOf(client, "pod-1")
		sent := 0
		fenced := lease.Fence(transport(func(*http.Request) (*http.Response, error) {
			sent++
			return &http.Response{StatusCode: http.StatusOK, Body: http.NoBody}, nil
		}))
		try := func(method string) error {
			resp, err := fenced.RoundTrip(httptest.NewRequest(method, "https://api.example/apis/entente.dev/v1alpha1/contracts/c", strings.NewReader("{}")))
			if err == nil {
				_ = resp.Body.Close()
			}
			return err
		}
		if err := try(http.MethodPost); err != nil {
			t.Errorf("an agent that starts may not make its identity: %v", err)
		}
		shut := gate(client)
		var leads atomic.Bool
		end := run(t, lease, &leads, false)
		defer end()
		time.Sleep(time.Minute)
		synctest.Wait()
		if !leads.Load() || try(http.MethodPatch) != nil {
			t.Fatalf("it leads %v, and may act: %v", leads.Load(), lease.Check())
		}
		shut.Store(true)
		failing := time.Now()
		for leads.Load() && time.Since(failing) < time.Minute {
			time.Sleep(10 * time.Millisecond)
			synctest.Wait()
		}
		if took := time.Since(failing); leads.Load() || took > timing.Duration-timing.Retry {
			t.Errorf("it leads %v after %s without its API server, with a lease of %s", leads.Load(), took, timing.Duration)
		}
		time.Sleep(timing.Duration)
		before := sent
		for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
			if err := try(method); !errors.Is(err, errEnded) {
				t.Errorf("%s: %v", method, err)
			}
		}
		if sent != before {
			t.Errorf("%d requests got past the fence", sent-before)
		}
		if err := try(http.MethodGet); err != nil {
			t.Errorf("it may not even read: %v", err)
		}
	})
}

// An agent that was stopped changes nothing, though it has its lease.
func TestAnAgentThatWasStoppedMayNotAct(t *testing.T) {
	t.Parallel()
	lease := leaseOf(fake.NewSimpleClientset(), "pod-1")
	if err := lease.Create(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: lease.Identity()}); err != nil {
		t.Fatal(err)
	}
	if err := lease.Check(); err != nil {
		t.Fatalf("an agent that leads may not act: %v", err)
	}
	why := errors.New("its namespace goes")
	lease.Stop(why)
	if err := lease.Check(); !errors.Is(err, why) {
		t.Errorf("it may act: %v", err)
	}
}

type transport func(*http.Request) (*http.Response, error)

func (f transport) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A shorter lease is for agents with another one on standby.
func TestTimingLeavesALeaderTimeToEnd(t *testing.T) {
	t.Parallel()
	for _, d := range []time.Duration{4 * time.Second, 6 * time.Second, 20 * time.Second, 25 * time.Second} {
		got := TimingOf(d)
		if got.Deadline+2*got.Retry >= got.Duration || 2*got.Retry > got.Deadline/2 {
			t.Errorf("a lease of %s has the timing %+v", d, got)
		}
	}
	// What a node's lease of 40 s, which is renewed each 10 s, leaves.
	if longest := TimingOf(25 * time.Second); 40*time.Second-10*time.Second-longest.Duration < 2*longest.Retry {
		t.Errorf("with the longest lease, %+v, virtual nodes are lost before another agent leads", longest)
	}
}
