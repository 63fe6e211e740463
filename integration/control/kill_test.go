package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/only"
	"github.com/entente-dev/entente/peering"
)

// convergence is how long two clusters may take to agree after an agent that was
// killed serves again, on a busy machine.
const convergence = time.Minute

// tooMany is how many rounds may fail before the rest is not worth the time.
const tooMany = 3

// moment is when an agent is killed.
type moment struct {
	name string
	// cluster and list are where to look; none is a random moment of the whole.
	cluster func(home *cluster) *cluster
	list    ctrlclient.ObjectList
	seen    func(watch.Event) bool
}

func homeCluster(home *cluster) *cluster   { return home }
func abroadCluster(home *cluster) *cluster { return home.pair.abroad }

func added(e watch.Event) bool { return e.Type == watch.Added }

func phase(p peering.Phase) func(watch.Event) bool {
	return func(e watch.Event) bool {
		c, ok := e.Object.(*v1alpha1.Contract)
		return ok && c.Status.Phase == p.String()
	}
}

func terminated(e watch.Event) bool {
	c, ok := e.Object.(*v1alpha1.Contract)
	return ok && c.Spec.Termination != ""
}

func deletionOf(kind ctrlclient.Object) func(watch.Event) bool {
	return func(e watch.Event) bool {
		o, ok := e.Object.(ctrlclient.Object)
		return ok && fmt.Sprintf("%T", o) == fmt.Sprintf("%T", kind) && (!o.GetDeletionTimestamp().IsZero() || e.Type == watch.Deleted)
	}
}

// moments are those at which what one side knows and what the other knows differ.
func moments() []moment {
	return []moment{
		{name: "at a random moment"},
		{"when the provider trusts the consumer", abroadCluster, &v1alpha1.ForeignClusterList{}, added},
		{"when the consumer trusts the provider", homeCluster, &v1alpha1.ForeignClusterList{}, added},
		{"when the consumer asks", homeCluster, &v1alpha1.PeeringRequestList{}, added},
		{"when the provider signed", abroadCluster, &v1alpha1.ContractList{}, added},
		{"when the consumer has the contract", homeCluster, &v1alpha1.ContractList{}, added},
		{"when the contract is in force at the provider", abroadCluster, &v1alpha1.ContractList{}, phase(peering.PhaseActive)},
		{"when the virtual node appears", homeCluster, &corev1.NodeList{}, added},
		{"when the request is deleted", homeCluster, &v1alpha1.PeeringRequestList{}, deletionOf(&v1alpha1.PeeringRequest{})},
		{"when the consumer ends the contract", homeCluster, &v1alpha1.ContractList{}, terminated},
		{"when the contract is over at the consumer", homeCluster, &v1alpha1.ContractList{}, phase(peering.PhaseClosed)},
		{"when the provider receives the end", abroadCluster, &v1alpha1.ContractList{}, terminated},
		{"when the contract is over at the provider", abroadCluster, &v1alpha1.ContractList{}, phase(peering.PhaseClosed)},
		{"when the virtual node goes", homeCluster, &corev1.NodeList{}, deletionOf(&corev1.Node{})},
		{"when the consumer forgets", homeCluster, &v1alpha1.ForeignClusterList{}, deletionOf(&v1alpha1.ForeignCluster{})},
		{"when the provider forgets", abroadCluster, &v1alpha1.ForeignClusterList{}, deletionOf(&v1alpha1.ForeignCluster{})},
	}
}

// await returns what waits for a moment. It begins to look at once.
func (m moment) await(ctx context.Context, home *cluster, random time.Duration) (func() error, error) {
	if m.cluster == nil {
		timer := time.NewTimer(random)
		return func() error {
			select {
			case <-timer.C:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}, nil
	}
	var opts []ctrlclient.ListOption
	if _, nodes := m.list.(*corev1.NodeList); nodes {
		opts = append(opts, ctrlclient.HasLabels{v1alpha1.LabelVirtualNode})
	}
	w, err := m.cluster(home).client.Watch(ctx, m.list, opts...)
	if err != nil {
		return nil, err
	}
	return func() error {
		defer w.Stop()
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case e, ok := <-w.ResultChan():
				if !ok {
					return errors.New("the watch ended")
				}
				if m.seen(e) {
					return nil
				}
			}
		}
	}, nil
}

// TestAnAgentMayDieAtAnyMoment kills one side while two clusters join, peer and part, and expects both to finish
// anyway. It covers each moment: by default at one of the two sides, which the seed decides; with `make matrix` at
// both.
func TestAnAgentMayDieAtAnyMoment(t *testing.T) {
	t.Parallel()
	rounds := only.Number(t, "ENTENTE_CONTROL_ROUNDS", len(moments())/2)
	seed := only.Number(t, "ENTENTE_CONTROL_SEED", int(time.Now().UnixNano()&0x7fffffff))
	t.Logf("ENTENTE_CONTROL_SEED=%d", seed)
	for i, victim := range []string{homeName, abroadName} {
		t.Run(victim, func(t *testing.T) { diesAtAnyMoment(t, victim, rounds, seed, i*len(moments())/2) })
	}
}

func diesAtAnyMoment(t *testing.T, name string, rounds, seed, first int) {
	t.Helper()
	home, abroad := agents(t)
	offer(t, abroad, "cpu=4", "memory=8Gi", "pods=20")
	w := watchContracts(t, home, abroad)
	victim, _ := forgets(home, name)
	random := rand.New(rand.NewPCG(uint64(seed), uint64(len(name))))
	failures, missed := 0, 0
	for round := range rounds {
		m := moments()[(first+round+seed)%len(moments())]
		r := roundOf(random)
		t.Run(fmt.Sprintf("dies %s, %d", m.name, round), func(t *testing.T) {
			err := dieAndConverge(t, home, abroad, victim, m, r)
			if errors.Is(err, errNoMoment) {
				t.Log(err)
				missed++
			} else if err != nil {
				failures++
				t.Errorf("%+v: %v", r, err)
			}
			for _, twice := range w.twice() {
				t.Error(twice)
			}
			// The next one starts from nothing.
			if err := home.pair.both(func(c *cluster) error { return c.start(t.Context()) }); err != nil {
				t.Fatal(err)
			}
			if err := part(t.Context(), home, abroad, convergence); err != nil {
				failures = tooMany
				home.pair.broken = true
				t.Errorf("clear up: %v", err)
			}
		})
		if failures >= tooMany {
			t.Fatalf("%s died, and that is enough", name)
		}
	}
	if missed > rounds/3+1 {
		t.Errorf("%s was not killed in %d of %d rounds", name, missed, rounds)
	}
}

// round has the random choices of a round.
type round struct {
	// After is when the random moment is, Late how late the kill, Down how long
	// the agent stays dead.
	After, Late, Down time.Duration
	// Ends says which side ends the peering, and how.
	Ends int
}

func roundOf(r *rand.Rand) round {
	return round{
		After: time.Duration(r.Int64N(int64(1200 * time.Millisecond))),
		Late:  time.Duration(r.Int64N(int64(20*time.Millisecond))) * time.Duration(r.Int64N(2)),
		Down:  time.Duration(r.Int64N(int64(300 * time.Millisecond))),
		Ends:  r.IntN(3),
	}
}

var errNoMoment = errors.New("the moment did not come")

func dieAndConverge(t *testing.T, home, abroad, victim *cluster, m moment, r round) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 6*time.Minute)
	defer cancel()
	wait, err := m.await(ctx, home, r.After)
	if err != nil {
		return err
	}
	var died sync.WaitGroup
	var back error
	killed := make(chan struct{})
	died.Go(func() {
		defer close(killed)
		if back = wait(); back != nil {
			return
		}
		time.Sleep(r.Late)
		victim.kill()
		time.Sleep(r.Down)
		back = victim.start(ctx)
	})
	err = inTurn(
		func() error { return stage("join", patientJoin(ctx, home, abroad)) },
		func() error { return stage("peer", peerOnce(ctx, home, abroad)) },
		func() error { return stage("part", partOnce(ctx, home, abroad, r.Ends)) },
	)
	if err != nil {
		cancel()
		died.Wait()
		return err
	}
	select {
	case <-killed:
	case <-time.After(2 * time.Second):
		// Not every run has every moment: a side that learns of an end in one way does not learn of
		// it in the other.
		cancel()
		died.Wait()
		return errNoMoment
	}
	died.Wait()
	if back != nil {
		return back
	}
	// What is over stays over.
	return part(ctx, home, abroad, convergence)
}

// TestForgettingIsReceivedAfterARestart: a side that forgets the other notifies it, although one of
// the two has just started and there was no session at the time.
func TestForgettingIsReceivedAfterARestart(t *testing.T) {
	t.Parallel()
	for _, forgetter := range []string{homeName, abroadName} {
		for _, restarted := range []string{homeName, abroadName} {
			t.Run(fmt.Sprintf("%s forgets, %s restarts", forgetter, restarted), func(t *testing.T) {
				home, abroad := agents(t)
				name := peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")
				here, there := forgets(home, forgetter)
				dead := home
				if restarted == abroadName {
					dead = abroad
				}
				dead.kill()
				if err := errors.Join(forget(t.Context(), here), dead.start(t.Context())); err != nil {
					t.Fatal(err)
				}
				if err := endedAt(t.Context(), there, name, soon); err != nil {
					t.Error(err)
				}
				if err := empty(t.Context(), here, soon); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// forgets returns the cluster that forgets the other, and the other.
func forgets(home *cluster, forgetter string) (here, there *cluster) {
	if forgetter == abroadName {
		return home.pair.abroad, home
	}
	return home, home.pair.abroad
}

// forgottenWhileDead has two agents agree on a contract, and one forget the other
// while that is dead. It returns the other, the contract that it holds, and when it
// was started again.
func forgottenWhileDead(t *testing.T, forgetter string) (there *cluster, name string, back time.Time) {
	t.Helper()
	home, abroad := agents(t)
	name = peered(t, home, abroad, "cpu=4", "memory=8Gi", "pods=20")
	here, there := forgets(home, forgetter)
	there.kill()
	if err := errors.Join(forget(t.Context(), here), empty(t.Context(), here, soon)); err != nil {
		t.Fatalf("with the other side dead: %v", err)
	}
	back = time.Now()
	if err := there.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return there, name, back
}

// TestAPeerForgottenWhileItWasDeadForgetsToo: a side that could not be notified keeps its contract until it has been
// refused for five minutes, and no longer. ENTENTE_SOAK=1 waits for that.
func TestAPeerForgottenWhileItWasDeadForgetsToo(t *testing.T) {
	if os.Getenv("ENTENTE_SOAK") == "" {
		t.Skip("ENTENTE_SOAK=1 runs it: it takes twelve minutes")
	}
	t.Parallel()
	const held = 4 * time.Minute
	for _, forgetter := range []string{homeName, abroadName} {
		t.Run(forgetter+" forgets", func(t *testing.T) {
			there, name, back := forgottenWhileDead(t, forgetter)
			if err := endedAt(t.Context(), there, name, held); err == nil {
				t.Errorf("its contract ended %s after it was back", time.Since(back))
			}
			if err := endedAt(t.Context(), there, name, refusals-held); err != nil {
				t.Error(err)
			}
			t.Logf("it ended %.0fs after its side was back", time.Since(back).Seconds())
		})
	}
}

// TestANewJoinRevivesNoOldContract: when the side that forgot the other is joined again, the
// other's remaining old contracts end, in either direction.
func TestANewJoinRevivesNoOldContract(t *testing.T) {
	t.Parallel()
	for _, forgetter := range []string{homeName, abroadName} {
		t.Run(forgetter+" forgot", func(t *testing.T) {
			there, name, _ := forgottenWhileDead(t, forgetter)
			if err := patientJoin(t.Context(), there.pair.home, there.pair.abroad); err != nil {
				t.Fatal(err)
			}
			if err := endedAt(t.Context(), there, name, later); err != nil {
				t.Error(err)
			}
		})
	}
}

// endedAt waits until a cluster holds a contract no longer.
func endedAt(ctx context.Context, c *cluster, name string, limit time.Duration) error {
	return eventually.Is(ctx, limit, name+" to be over at "+c.name, func(ctx context.Context) error {
		var held v1alpha1.Contract
		if err := c.get(ctx, name, &held); err != nil {
			return ctrlclient.IgnoreNotFound(err)
		}
		if held.Status.Phase != peering.PhaseClosed.String() {
			return fmt.Errorf("there is %s", describe(&held))
		}
		return nil
	})
}

// inTurn does one thing after the other until one fails.
func inTurn(steps ...func() error) error {
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

func stage(name string, err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// patientJoin joins as a person would whose command fails: again, with the token
// that there is.
func patientJoin(ctx context.Context, home, abroad *cluster) error {
	token := ""
	err := eventually.Is(ctx, convergence+soon, "a token and its use", func(ctx context.Context) error {
		var err error
		if token == "" {
			if token, err = createToken(ctx, abroad); err != nil {
				return err
			}
		}
		return redeem(ctx, home, token)
	})
	if err != nil {
		return err
	}
	return home.pair.both(func(c *cluster) error { return connected(ctx, c, convergence) })
}

// peerOnce asks once, and checks that the provider gave once.
func peerOnce(ctx context.Context, home, abroad *cluster) error {
	if err := home.client.Create(ctx, ask("cpu=4", "memory=8Gi", "pods=20")); err != nil {
		return err
	}
	if _, err := contract(ctx, home, abroad, convergence); err != nil {
		return err
	}
	return grantedIs(ctx, abroad, "4")
}

// grantedIs checks how many processors a provider grants in all.
func grantedIs(ctx context.Context, c *cluster, want string) error {
	contracts, err := list[v1alpha1.ContractList](ctx, c)
	if err != nil {
		return err
	}
	sum := resource.Quantity{}
	for i := range contracts.Items {
		if contracts.Items[i].Status.Phase != peering.PhaseClosed.String() {
			sum.Add(contracts.Items[i].Spec.Resources[corev1.ResourceCPU])
		}
	}
	if sum.Cmp(resource.MustParse(want)) != 0 {
		return fmt.Errorf("%s grants %s processors by %d contracts, want %s", c.name, &sum, len(contracts.Items), want)
	}
	return nil
}

// partOnce ends the peering in one of three ways, and waits until both sides
// agree that it is over.
func partOnce(ctx context.Context, home, abroad *cluster, how int) error {
	switch how {
	case 0: // in good order: the contract first, then the trust
		if err := home.client.DeleteAllOf(ctx, &v1alpha1.PeeringRequest{}); err != nil {
			return err
		}
		for _, c := range []*cluster{home, abroad} {
			err := eventually.Is(ctx, convergence, "no contract at "+c.name, func(ctx context.Context) error {
				contracts, err := list[v1alpha1.ContractList](ctx, c)
				if err == nil && len(contracts.Items) > 0 {
					err = fmt.Errorf("there is %s", describe(&contracts.Items[0]))
				}
				return err
			})
			if err != nil {
				return err
			}
		}
	case 1: // by the consumer, at once
		if err := forget(ctx, home); err != nil {
			return err
		}
	case 2: // by the provider, at once
		if err := forget(ctx, abroad); err != nil {
			return err
		}
	}
	return part(ctx, home, abroad, convergence)
}

// offer makes a policy of the test's own decide what a cluster offers.
func offer(t *testing.T, c *cluster, ceiling ...string) *v1alpha1.PeeringPolicy {
	t.Helper()
	all := int32(100)
	p := &v1alpha1.PeeringPolicy{ObjectMeta: metav1.ObjectMeta{Name: "aa-control"}, Spec: v1alpha1.PeeringPolicySpec{
		Accept: v1alpha1.AcceptAutomatic, PodSecurity: "baseline",
		Limits: v1alpha1.PolicyLimits{Resources: amounts(ceiling...), PercentOfFree: &all},
	}}
	if err := c.client.Create(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, c, p) })
	return p
}

// contractWatch sees whether two contracts are ever in force for one request.
type contractWatch struct {
	mu    sync.Mutex
	found []string
}

func watchContracts(t *testing.T, clusters ...*cluster) *contractWatch {
	t.Helper()
	out := &contractWatch{}
	var wg sync.WaitGroup
	ctx, cancel := context.WithCancel(t.Context())
	for _, c := range clusters {
		w, err := c.client.Watch(ctx, &v1alpha1.ContractList{})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() { out.watch(c.name, w) })
	}
	t.Cleanup(func() { cancel(); wg.Wait() })
	return out
}

func (w *contractWatch) watch(where string, events watch.Interface) {
	defer events.Stop()
	inForce := map[string]map[string]bool{}
	for e := range events.ResultChan() {
		c, ok := e.Object.(*v1alpha1.Contract)
		if !ok {
			continue
		}
		if inForce[c.Spec.RequestID] == nil {
			inForce[c.Spec.RequestID] = map[string]bool{}
		}
		delete(inForce[c.Spec.RequestID], c.Name)
		if e.Type != watch.Deleted && c.Status.Phase != peering.PhaseClosed.String() {
			inForce[c.Spec.RequestID][c.Name] = true
		}
		if n := inForce[c.Spec.RequestID]; len(n) > 1 {
			w.mu.Lock()
			w.found = append(w.found, fmt.Sprintf("at %s contracts %v are in force for one request", where, sorted(n)))
			w.mu.Unlock()
		}
	}
}

// twice returns what was seen since the last call.
func (w *contractWatch) twice() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := w.found
	w.found = nil
	return out
}
