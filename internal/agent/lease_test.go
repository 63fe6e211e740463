package agent

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/leaderelection"
)

// lead runs an agent's election until it is killed, which releases nothing.
func lead(t *testing.T, client kubernetes.Interface, uid string) (leads *atomic.Bool, kill func()) {
	t.Helper()
	leads = &atomic.Bool{}
	ctx, cancel := context.WithCancel(t.Context())
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock:          lockOf(Config{Namespace: "entente-system", Pod: "entente-agent-x", PodUID: uid}, client),
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: leaseRetry,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { leads.Store(true) }, OnStoppedLeading: func() { leads.Store(false) }},
	})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() { elector.Run(ctx) })
	return leads, func() {
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
		time.Sleep(10 * leaseDuration)
		synctest.Wait()
		if other.Load() || !again.Load() {
			t.Errorf("of two agents the first leads %v, the second %v", again.Load(), other.Load())
		}
		kill()
		time.Sleep(leaseDuration - 2*leaseRetry)
		synctest.Wait()
		if other.Load() {
			t.Error("another pod's agent leads before the lease of the one that was killed ended")
		}
		time.Sleep(8 * leaseRetry) // retries come at up to 2.2 times their period
		synctest.Wait()
		if !other.Load() {
			t.Error("nobody leads")
		}
		// The killed one's pod comes back: its lease is another's now.
		late, killLate := lead(t, client, "pod-1")
		time.Sleep(10 * leaseDuration)
		synctest.Wait()
		if late.Load() || !other.Load() {
			t.Errorf("of two agents the one that leads leads %v, the one that comes back %v", other.Load(), late.Load())
		}
		killLate()
		killOther()
	})
}
