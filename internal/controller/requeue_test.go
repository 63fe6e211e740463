package controller

import (
	"math/rand/v2"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/usage"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/meter"
)

// With hundreds of peers what counts is how long each contract can be left alone.
func TestContractIsRequeuedWhenTimeChangesIt(t *testing.T) {
	t.Parallel()
	active := peering.Contract{State: peering.Active, Role: peering.Provider, NotAfter: now.Add(time.Hour), Revision: 2}
	consumer := active
	consumer.Role = peering.Consumer
	speaks := func(said v1alpha1.PeerContract) *v1alpha1.ForeignCluster {
		said.ID = "c-1"
		return &v1alpha1.ForeignCluster{Status: v1alpha1.ForeignClusterStatus{Contracts: []v1alpha1.PeerContract{said}}}
	}
	drains := func(left time.Duration) func(*peering.Contract) {
		return func(c *peering.Contract) {
			c.State, c.Reason, c.Notice, c.DrainUntil = peering.Draining, peering.EndedByPeer, 2*time.Minute, now.Add(left)
		}
	}
	agrees := speaks(v1alpha1.PeerContract{Revision: 2, Phase: "Active"})
	metered := func(using string, since, until time.Duration) *meter.Meter {
		m := meter.New(now.Add(-since), time.Hour)
		m.Until = now.Add(-until)
		if using != "" {
			m.Using = peering.Resources{using: peering.Whole(1)}
		}
		return &m
	}
	kept := func(ago time.Duration) *v1alpha1.Usage {
		return &v1alpha1.Usage{Until: metav1.NewMicroTime(now.Add(-ago))}
	}
	for name, tc := range map[string]struct {
		contract peering.Contract
		change   func(*peering.Contract)
		meter    *meter.Meter
		kept     *v1alpha1.Usage
		fc       *v1alpha1.ForeignCluster
		want     time.Duration
	}{
		"nothing happens":                      {contract: active, fc: agrees, want: restInterval},
		"nothing is in use":                    {contract: active, fc: agrees, meter: metered("", time.Minute, 0), kept: kept(0), want: restInterval},
		"it ends":                              {contract: active, fc: agrees, change: func(c *peering.Contract) { c.NotAfter = now.Add(time.Minute) }, want: time.Minute},
		"its pods are evicted":                 {contract: consumer, fc: agrees, change: drains(90 * time.Second), want: 30 * time.Second},
		"its pods were evicted":                {contract: consumer, fc: agrees, change: drains(40 * time.Second), want: 40 * time.Second},
		"its consumer drains it":               {contract: active, fc: agrees, change: drains(90 * time.Second), want: 90 * time.Second},
		"it ends now":                          {contract: active, fc: agrees, change: func(c *peering.Contract) { c.NotAfter = now }, want: removalPoll},
		"a period ends":                        {contract: active, fc: agrees, meter: metered("", time.Hour-40*time.Second, 0), kept: kept(0), want: 40 * time.Second},
		"a period ended":                       {contract: active, fc: agrees, meter: metered("", 2*time.Hour, 0), kept: kept(0), want: removalPoll},
		"something is in use":                  {contract: active, fc: agrees, meter: metered("cpu", time.Minute, 0), kept: kept(0), want: keepEvery},
		"it was kept a while ago":              {contract: active, fc: agrees, meter: metered("cpu", time.Minute, 0), kept: kept(20 * time.Second), want: keepEvery - 20*time.Second},
		"a period ends while it is in use":     {contract: active, fc: agrees, meter: metered("cpu", time.Hour-30*time.Second, 0), kept: kept(0), want: 30 * time.Second},
		"it is over":                           {contract: active, fc: agrees, change: func(c *peering.Contract) { c.State = peering.Closed }, meter: metered("", 2*time.Hour, 0), want: restInterval},
		"the peer is not known":                {contract: consumer, want: restInterval},
		"its consumer does not speak of it":    {contract: active, fc: &v1alpha1.ForeignCluster{}, want: restInterval},
		"its provider does not speak of it":    {contract: consumer, fc: &v1alpha1.ForeignCluster{}, want: endingInterval},
		"its provider has a statement":         {contract: consumer, fc: speaks(v1alpha1.PeerContract{Revision: 2, Phase: "Active", StatementSequence: 1}), want: fetchAgain},
		"its provider has a later revision":    {contract: consumer, fc: speaks(v1alpha1.PeerContract{Revision: 3, Phase: "Active"}), want: fetchAgain},
		"its consumer has a later revision":    {contract: active, fc: speaks(v1alpha1.PeerContract{Revision: 3, Phase: "Active"}), want: fetchAgain},
		"its consumer has an earlier revision": {contract: active, fc: speaks(v1alpha1.PeerContract{Revision: 1, Phase: "Active"}), want: restInterval},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if tc.change != nil {
				tc.change(&tc.contract)
			}
			stored := &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: "c-1"}, Spec: v1alpha1.ContractSpec{Revision: 2}}
			stored.Status.Usage = tc.kept
			if got := requeueAfter(tc.contract, tc.meter, stored, tc.fc, now); got != tc.want {
				t.Errorf("after %s, want after %s", got, tc.want)
			}
		})
	}
}

// TestRequeuesCountAllUse reconciles a contract when use changes and when it
// asked to be requeued, and at no other time.
func TestRequeuesCountAllUse(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	terms := p.terms(t, func(x *peering.Terms) { x.NotAfter = x.NotAfter.Add(24 * time.Hour) })
	first := p.stored(t, terms, p.provider)
	for seed := range uint64(8) {
		random := rand.New(rand.NewPCG(seed, 0))
		b := newBench(t, p.provider, first.DeepCopy(), foreign("peer", p.consumer))
		b.says(t, v1alpha1.PeerContract{Revision: 1, Phase: "Active"})
		var next time.Time
		looks := 0
		look := func() {
			looks++
			result, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "c-1"}})
			if err != nil {
				t.Fatal(err)
			}
			if result.RequeueAfter <= 0 {
				t.Fatal("it is never requeued")
			}
			next = b.clock.Add(result.RequeueAfter)
		}
		look()
		want := int64(0)
		for range 1 + random.IntN(6) {
			processors := random.Int64N(5)
			b.offloaded.used, b.offloaded.pods = nil, int(processors)
			if processors > 0 {
				b.offloaded.used = amountsIn("cpu=" + peering.Whole(processors).String())
			}
			look()
			last := 1 + random.Int64N(1800)
			want += processors * last
			until := b.clock.Add(time.Duration(last) * time.Second)
			for next.Before(until) {
				b.clock = next
				look()
			}
			b.clock = until
		}
		b.offloaded.used, b.offloaded.pods = nil, 0
		look()
		var got v1alpha1.Contract
		if err := b.client.Get(t.Context(), client.ObjectKey{Name: "c-1"}, &got); err != nil {
			t.Fatal(err)
		}
		// A Contract keeps a limited number of them.
		periods := int(b.clock.Sub(terms.NotBefore) / terms.StatementPeriod)
		if len(got.Status.Statements) != min(periods, usage.MaxKept) {
			t.Errorf("seed %d: %d statements after %d periods", seed, len(got.Status.Statements), periods)
		}
		if periods <= usage.MaxKept && cpuSeconds(t, &got) != peering.Whole(want).String() {
			t.Errorf("seed %d: %s processor-seconds were counted, want %d", seed, cpuSeconds(t, &got), want)
		}
		if most := 2 + 2*6 + 2*int(b.clock.Sub(now)/keepEvery+1); looks > most {
			t.Errorf("seed %d: %d reconciliations in %s", seed, looks, b.clock.Sub(now))
		}
	}
}

func TestContractAtRestIsNotWritten(t *testing.T) {
	t.Parallel()
	p := newParties(t)
	for _, self := range []string{"provider", "consumer"} {
		id, peer := p.provider, p.consumer
		if self == "consumer" {
			id, peer = p.consumer, p.provider
		}
		terms := p.terms(t, func(x *peering.Terms) { x.StatementPeriod = time.Hour })
		b := newBench(t, id, p.stored(t, terms, id), foreign("peer", peer))
		b.says(t, v1alpha1.PeerContract{Revision: 1, Phase: "Active"})
		before := b.look(t).ResourceVersion
		for range 5 {
			result, err := b.Reconcile(t.Context(), reconcile.Request{NamespacedName: client.ObjectKey{Name: "c-1"}})
			if err != nil || result.RequeueAfter != restInterval {
				t.Fatalf("%s: it is requeued after %s, %v", self, result.RequeueAfter, err)
			}
			b.clock = b.clock.Add(result.RequeueAfter)
		}
		if after := b.look(t).ResourceVersion; after != before {
			t.Errorf("%s: its status was written, and nothing happened", self)
		}
	}
}
