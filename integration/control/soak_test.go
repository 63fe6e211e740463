package control

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/only"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

const (
	// recovery is how long two clusters may take to agree after an agent that was killed serves
	// again: two rounds of asking again after a no, on a busy machine.
	recovery = 2 * time.Minute
	// holds is how long a provider may reserve the capacity of an offer that was not signed, and
	// until it notices.
	holds = 75 * time.Second
	// refusals is how long a cluster that was forgotten while it was dead may hold what
	// it grants: five minutes of refusals, and the pauses between them.
	refusals = 5*time.Minute + recovery
	// mostSpan bounds the time in which an agent is killed.
	mostSpan = 3 * time.Second
	// renewing is how long the contracts last that are renewed all the time. A
	// contract begins a minute before it is signed and is renewed 30 s before its end:
	// 35 s are left to live, and it is renewed after 5 s.
	renewing = 95 * time.Second
	// offered is what the provider's policy gives, processors.
	offered = "8"
)

// part of a peering's life in which an agent dies.
type chapter struct {
	name string
	// long says that one peering, with a pod at work, goes through all rounds; else
	// each round begins with nothing and ends with nothing.
	long bool
	// policy is what the provider offers on.
	policy func(*v1alpha1.PeeringPolicySpec)
	// prepare makes what has to be there before; nil makes nothing.
	prepare func(context.Context, *ordeal) error
	// begins waits until the time begins in which agents die; nil means when act begins.
	begins func(context.Context, *ordeal) error
	// act does what an administrator does, who repeats what failed.
	act func(context.Context, *ordeal) error
	// agreed says in what the two clusters do not agree yet.
	agreed func(context.Context, *ordeal) error
	// granted is how many processors are granted by then.
	granted func(*ordeal) string
}

func nothingGranted(*ordeal) string { return "0" }

func chapters() []chapter {
	trusted := func(ctx context.Context, o *ordeal) error { return join(ctx, o.home, o.abroad) }
	return []chapter{
		{
			name: "join", granted: nothingGranted,
			act: func(ctx context.Context, o *ordeal) error { return joinAgain(ctx, o.home, o.abroad) },
			agreed: func(ctx context.Context, o *ordeal) error {
				return o.home.pair.both(func(c *cluster) error { return knows(ctx, c) })
			},
		},
		{
			name: "request", prepare: trusted, act: askFor, agreed: inForceAtBoth,
			granted: func(o *ordeal) string { return o.cpu },
		},
		{
			name: "sign", prepare: trusted, act: askFor, agreed: inForceAtBoth,
			// The provider answered, and what the consumer does next is sign.
			begins: func(ctx context.Context, o *ordeal) error {
				return o.abroad.logs(ctx, o.log, "PeeringService/RequestPeering")
			},
			granted: func(o *ordeal) string { return o.cpu },
		},
		{
			name: "amend", long: true, act: amend, agreed: revised,
			policy:  func(p *v1alpha1.PeeringPolicySpec) { p.Price, p.StatementPeriod = costs("3.6"), lasting(time.Minute) },
			granted: func(o *ordeal) string { return o.cpu },
		},
		{
			name: "renew", long: true, agreed: revised,
			policy: func(p *v1alpha1.PeeringPolicySpec) {
				p.ContractDuration, p.Price, p.StatementPeriod = lasting(renewing), costs("3.6"), lasting(time.Minute)
			},
			begins: renewal, act: func(context.Context, *ordeal) error { return nil },
			granted: func(o *ordeal) string { return o.cpu },
		},
		{
			name: "terminate", act: terminate, agreed: over, granted: nothingGranted,
			prepare: func(ctx context.Context, o *ordeal) error {
				if err := join(ctx, o.home, o.abroad); err != nil {
					return err
				}
				return contracted(ctx, o)
			},
		},
	}
}

// ordeal is the state that the rounds of a chapter share.
type ordeal struct {
	home, abroad *cluster
	random       *rand.Rand
	// span is how long the chapter takes without a kill.
	span time.Duration
	// contract and revision are those before the round, cpu is the amount to grant after it, and log
	// where the provider's log ended.
	contract string
	revision int64
	cpu      string
	log      int64
	// how is the way that an administrator takes.
	how int
	// node and pod are the virtual node and the pod at work there and abroad, which
	// stay the same; worked is since when.
	node, pod types.UID
	worked    time.Time
	remote    string
	provider  peering.Party
	// counted is up to where each cluster had counted use.
	counted map[string]v1alpha1.Usage
}

// fate has the random choices of a round.
type fate struct {
	// Victims are the processes to kill; none, to see how long it takes.
	Victims []string
	// At is when, in spans; Down is how long it stays dead.
	At   float64
	Down time.Duration
}

// died is the result of a round.
type died struct {
	// late says that all was done before.
	late bool
	// agreed is how long both took to agree once all agents served again.
	agreed time.Duration
	// untold says that one side did not hear that it was forgotten, and concluded it
	// from being refused.
	untold bool
}

// TestAPeeringSurvivesAKillInEachPart kills an agent of either side, or both, at a random moment of
// each thing that two clusters do together, ENTENTE_ROUNDS times for each. ENTENTE_SEED repeats the
// random choices.
func TestAPeeringSurvivesAKillInEachPart(t *testing.T) {
	only.Matrix(t, "more than a minute; package faults kills agents with each change")
	home, abroad := agents(t)
	rounds := only.Number(t, "ENTENTE_ROUNDS", 2)
	seed := only.Number(t, "ENTENTE_SEED", int(time.Now().UnixNano()&0x7fffffff))
	t.Logf("ENTENTE_SEED=%d", seed)
	if err := part(t.Context(), home, abroad, later); err != nil {
		t.Fatal(err)
	}
	before, err := settled(t.Context(), home.pair)
	if err != nil {
		t.Fatal(err)
	}
	w := watchContracts(t, home, abroad)
	for i, chapter := range chapters() {
		t.Run(chapter.name, func(t *testing.T) {
			o := &ordeal{home: home, abroad: abroad, cpu: "4", counted: map[string]v1alpha1.Usage{}}
			live := func(t *testing.T) { // with its own cleanup
				policy := chapter.policy
				if policy == nil {
					policy = func(*v1alpha1.PeeringPolicySpec) {}
				}
				offerBy(t, abroad, policy, "cpu="+offered, "memory=16Gi", "pods=40")
				if chapter.long {
					o.settle(t)
				}
				o.goThrough(t, &chapter, rounds, uint64(seed)<<8|uint64(i), w, before)
			}
			// The leftovers of a long one are checked when its pods and namespaces are gone.
			t.Run("rounds", live)
			if err := errors.Join(part(t.Context(), home, abroad, later), nothingLeft(t.Context(), o.home.pair, before)); err != nil {
				t.Error(err)
			}
		})
	}
}

// goThrough runs the rounds of a chapter. The first kills nothing.
func (o *ordeal) goThrough(t *testing.T, c *chapter, rounds int, seed uint64, w *contractWatch, before map[string]string) {
	t.Helper()
	var took []time.Duration
	failures, late, untold, killed := 0, 0, 0, map[string]int{}
	for round := range rounds + 1 {
		o.random = rand.New(rand.NewPCG(seed, uint64(round)))
		f := o.fate()
		if round == 0 {
			f.Victims = nil
		}
		begin := time.Now()
		d, err := o.round(t.Context(), c, f)
		for _, twice := range w.twice() {
			err = errors.Join(err, errors.New(twice))
		}
		if !c.long || err != nil {
			// What failed is not carried into the next round.
			err = errors.Join(err, o.home.pair.both(func(c *cluster) error { return c.start(t.Context()) }),
				part(t.Context(), o.home, o.abroad, recovery), nothingLeft(t.Context(), o.home.pair, before))
		}
		if err != nil {
			failures++
			t.Errorf("round %d of %s, begun %s, way %d, %+v: %v", round, c.name, begin.UTC().Format(time.TimeOnly), o.how, f, err)
			if c.long || failures >= tooMany {
				t.Fatal("that is enough")
			}
			continue
		}
		if round == 0 {
			o.span = min(max(d.agreed, 40*time.Millisecond), mostSpan)
			continue
		}
		took = append(took, d.agreed)
		killed[strings.Join(f.Victims, " and ")]++
		if d.late {
			late++
		}
		if d.untold {
			untold++
		}
	}
	if len(took) > 0 {
		slices.Sort(took)
		t.Logf("%s: %d rounds of %d ms, killed %v, %d times when all was done; both agreed %.1fs after all served again in the median, %.1fs at most; %d times a side was not notified that it was forgotten",
			c.name, len(took), o.span.Milliseconds(), killed, late, took[len(took)/2].Seconds(), took[len(took)-1].Seconds(), untold)
	}
}

func (o *ordeal) fate() fate {
	victims := [][]string{{homeName}, {abroadName}, {homeName}, {abroadName}, {homeName, abroadName}}
	f := fate{
		// Rather early than late: that is when more than the last steps are left.
		Victims: victims[o.random.IntN(len(victims))], At: o.random.Float64() * o.random.Float64() * 1.5,
		Down: time.Duration(o.random.Int64N(int64(300 * time.Millisecond))),
	}
	o.how = o.random.IntN(6)
	return f
}

// round does once what a chapter is about, while agents die.
func (o *ordeal) round(ctx context.Context, c *chapter, f fate) (died, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	if c.prepare != nil {
		if err := stage("prepare", c.prepare(ctx, o)); err != nil {
			return died{}, err
		}
	}
	var err error
	if o.log, err = o.abroad.logEnd(); err != nil {
		return died{}, err
	}
	var out died
	var acted sync.WaitGroup
	var actErr error
	began := make(chan struct{})
	acted.Go(func() { close(began); actErr = c.act(ctx, o) })
	<-began
	if c.begins != nil {
		if err := c.begins(ctx, o); err != nil {
			cancel()
			acted.Wait()
			return out, errors.Join(stage("wait for the moment", err), actErr)
		}
	}
	begin := time.Now()
	if len(f.Victims) > 0 {
		time.Sleep(time.Duration(f.At * float64(o.span)))
		victims := slices.DeleteFunc([]*cluster{o.home, o.abroad}, func(c *cluster) bool { return !slices.Contains(f.Victims, c.name) })
		for _, v := range victims {
			v.kill()
		}
		out.late = c.agreed(ctx, o) == nil
		time.Sleep(f.Down)
		for _, v := range victims {
			err = errors.Join(err, v.start(ctx))
		}
		begin = time.Now()
	}
	acted.Wait()
	if err = errors.Join(err, stage(c.name, actErr)); err != nil {
		return out, err
	}
	agreed := func(ctx context.Context) error { return c.agreed(ctx, o) }
	err = eventually.Is(ctx, recovery, "both sides to agree", agreed)
	if err != nil && o.forgotten(ctx) {
		out.untold = true
		err = eventually.Is(ctx, refusals, "the side that was forgotten to conclude it", agreed)
	}
	if err != nil {
		return out, err
	}
	out.agreed = time.Since(begin)
	return out, o.check(ctx, c)
}

// check checks the invariants when both sides have agreed.
func (o *ordeal) check(ctx context.Context, c *chapter) error {
	granted := c.granted(o)
	err := grantedIs(ctx, o.abroad, granted)
	if err == nil && c.name != "terminate" {
		left := resource.MustParse(offered)
		left.Sub(resource.MustParse(granted))
		err = eventually.Is(ctx, holds, "the provider to have "+left.String()+" processors left to offer", func(ctx context.Context) error {
			return couldGrant(ctx, o.abroad, left)
		})
	}
	if c.long {
		err = errors.Join(err, o.undisturbed(ctx))
	}
	return err
}

// joinAgain joins as a person would whose command fails: again, with the token that
// there is.
func joinAgain(ctx context.Context, home, abroad *cluster) error {
	token := ""
	return eventually.Is(ctx, recovery, "a token and its use", func(ctx context.Context) error {
		var err error
		if token == "" {
			if token, err = createToken(ctx, abroad); err != nil {
				return err
			}
		}
		return redeem(ctx, home, token)
	})
}

// knows returns an error unless a cluster knows the other one, and no third one.
func knows(ctx context.Context, c *cluster) error {
	all, err := list[v1alpha1.ForeignClusterList](ctx, c)
	if err != nil {
		return err
	}
	if len(all.Items) != 1 || all.Items[0].Name != peerOf(c) {
		return fmt.Errorf("%s knows %d clusters", c.name, len(all.Items))
	}
	fc := &all.Items[0]
	for _, kind := range []string{v1alpha1.ConditionTrusted, v1alpha1.ConditionConnected} {
		if err := conditionTrue(fc.Status.Conditions, kind); err != nil {
			return fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return nil
}

// askFor asks for what the ordeal is about.
func askFor(ctx context.Context, o *ordeal) error {
	o.contract, o.revision = "", 0
	request := ask("cpu="+o.cpu, "memory=8Gi", "pods=20")
	request.Spec.Duration = lasting(renewing) // less than is taken unless it is asked for
	return o.home.client.Create(ctx, request)
}

// contracted asks, and waits until the contract is in force.
func contracted(ctx context.Context, o *ordeal) error {
	if err := askFor(ctx, o); err != nil {
		return err
	}
	return eventually.Is(ctx, recovery, "a contract", func(ctx context.Context) error { return inForceAtBoth(ctx, o) })
}

// inForceAtBoth says in what the two clusters do not hold the same one contract, in
// force, with its node.
func inForceAtBoth(ctx context.Context, o *ordeal) error {
	mine, err := theOnly(ctx, o.home)
	if err != nil {
		return err
	}
	theirs, err := theOnly(ctx, o.abroad)
	if err != nil {
		return err
	}
	if mine.Spec.Envelope != theirs.Spec.Envelope {
		return fmt.Errorf("home holds %s revision %d, abroad %s revision %d", mine.Name, mine.Spec.Revision, theirs.Name, theirs.Spec.Revision)
	}
	for _, c := range []*v1alpha1.Contract{mine, theirs} {
		if c.Status.Phase != peering.PhaseActive.String() {
			return fmt.Errorf("there is %s", describe(c))
		}
	}
	var request v1alpha1.PeeringRequest
	if err := o.home.get(ctx, requestName, &request); err != nil {
		return err
	}
	if err := conditionTrue(request.Status.Conditions, v1alpha1.ConditionAccepted); err != nil {
		return err
	}
	if request.Status.Contract != mine.Name || request.Status.ObservedGeneration != request.Generation {
		return fmt.Errorf("the request has contract %q for generation %d of %d", request.Status.Contract, request.Status.ObservedGeneration, request.Generation)
	}
	return nodeReady(ctx, o.home, request.Status.Node)
}

// theOnly returns the contract that a cluster has in force; there has to be one.
func theOnly(ctx context.Context, c *cluster) (*v1alpha1.Contract, error) {
	all, err := list[v1alpha1.ContractList](ctx, c)
	if err != nil {
		return nil, err
	}
	held := slices.DeleteFunc(all.Items, func(c v1alpha1.Contract) bool { return c.Status.Phase == peering.PhaseClosed.String() })
	if len(held) != 1 {
		return nil, fmt.Errorf("%s has %d contracts in force", c.name, len(held))
	}
	return &held[0], nil
}

// amend asks for another amount, more or less than there is.
func amend(ctx context.Context, o *ordeal) error {
	if err := o.remember(ctx); err != nil {
		return err
	}
	o.cpu = slices.DeleteFunc([]string{"2", "3", "4", "5", "6"}, func(s string) bool { return s == o.cpu })[o.random.IntN(4)]
	return o.home.client.Patch(ctx, ask(), ctrlclient.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"resources":{"cpu":%q}}}`, o.cpu)))
}

// renewal waits until the contract is due to be renewed.
func renewal(ctx context.Context, o *ordeal) error {
	if err := o.remember(ctx); err != nil {
		return err
	}
	held, err := theOnly(ctx, o.home)
	if err != nil {
		return err
	}
	due := peering.RenewAt(peering.Contract{State: peering.Active, NotBefore: held.Spec.NotBefore.Time, NotAfter: held.Spec.NotAfter.Time})
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(time.Until(due) - o.span/4):
		return nil
	}
}

// remember records the present agreement.
func (o *ordeal) remember(ctx context.Context) error {
	held, err := theOnly(ctx, o.abroad)
	if err == nil {
		o.contract, o.revision = held.Name, held.Spec.Revision
	}
	return err
}

// revised says in what the two clusters do not agree on a later revision of the
// contract that there was, with the amounts that are asked for.
func revised(ctx context.Context, o *ordeal) error {
	if err := inForceAtBoth(ctx, o); err != nil {
		return err
	}
	held, err := theOnly(ctx, o.home)
	if err != nil {
		return err
	}
	if held.Name != o.contract {
		return eventually.Permanent(fmt.Errorf("there is another contract, %s instead of %s", held.Name, o.contract))
	}
	if held.Spec.Revision <= o.revision || held.Spec.Resources.Cpu().Cmp(resource.MustParse(o.cpu)) != 0 {
		return fmt.Errorf("revision %d grants %s processors; it was %d, and %s are asked for", held.Spec.Revision, held.Spec.Resources.Cpu(), o.revision, o.cpu)
	}
	var node corev1.Node
	if err := o.home.get(ctx, nodeName, &node); err != nil {
		return err
	}
	if got := node.Status.Allocatable.Cpu(); got.Cmp(resource.MustParse(o.cpu)) != 0 {
		return fmt.Errorf("the node has %s processors", got)
	}
	return nil
}

// forgotten reports whether one of the clusters does not know the other one any more.
func (o *ordeal) forgotten(ctx context.Context) bool {
	return slices.ContainsFunc([]*cluster{o.home, o.abroad}, func(c *cluster) bool {
		all, err := list[v1alpha1.ForeignClusterList](ctx, c)
		return err == nil && len(all.Items) == 0
	})
}

// terminate ends the contract in one of the ways that there are.
func terminate(ctx context.Context, o *ordeal) error {
	if err := o.remember(ctx); err != nil {
		return err
	}
	ended := &v1alpha1.Contract{}
	ended.Name = o.contract
	by := func(c *cluster, how v1alpha1.Termination) error {
		return c.client.Patch(ctx, ended, ctrlclient.RawPatch(types.MergePatchType, fmt.Appendf(nil, `{"spec":{"termination":%q}}`, how)))
	}
	switch o.how {
	case 0: // in good order
		return o.home.client.Delete(ctx, ask())
	case 1:
		return errors.Join(by(o.home, v1alpha1.TerminateNow), o.home.client.Delete(ctx, ask()))
	case 2:
		return by(o.abroad, v1alpha1.TerminateNow)
	case 3:
		return by(o.abroad, v1alpha1.TerminateDrain)
	case 4:
		return forget(ctx, o.home)
	default:
		return forget(ctx, o.abroad)
	}
}

// over says in what a contract is not over yet, on either side.
func over(ctx context.Context, o *ordeal) error {
	for _, c := range []*cluster{o.home, o.abroad} {
		all, err := list[v1alpha1.ContractList](ctx, c)
		if err != nil {
			return err
		}
		for i := range all.Items {
			if held := &all.Items[i]; held.Name != o.contract || held.Status.Phase != peering.PhaseClosed.String() {
				return fmt.Errorf("%s has %s", c.name, describe(held))
			}
		}
	}
	nodes, err := list[corev1.NodeList](ctx, o.home, virtualNodes())
	if err == nil && len(nodes.Items) > 0 {
		err = fmt.Errorf("there is %s", describe(&nodes.Items[0]))
	}
	return err
}

// couldGrant checks what the provider would offer the consumer now: what the policy gives, less what
// is granted, with each contract counted once.
func couldGrant(ctx context.Context, abroad *cluster, want resource.Quantity) error {
	tested, err := call(ctx, abroad, func(ctx context.Context, a ententev1.AdminServiceClient) (*ententev1.TestPolicyResponse, error) {
		return a.TestPolicy(ctx, &ententev1.TestPolicyRequest{Peer: "peers/" + peerOf(abroad), NoNetwork: true})
	})
	if err != nil {
		return err
	}
	if len(tested.GetResults()) != 1 || tested.GetResults()[0].GetAdvertisement() == nil {
		return fmt.Errorf("it would answer %v", tested.GetResults())
	}
	text := tested.GetResults()[0].GetAdvertisement().GetResources().GetAmounts()["cpu"]
	got, err := resource.ParseQuantity(text)
	if err == nil && got.Cmp(want) != 0 {
		err = fmt.Errorf("it has %s: %s", text, tested.GetResults()[0].GetMessage())
	}
	return err
}

// nothingLeft waits until both clusters have what they had before there was any
// peering, but for the policy of the chapter. A certificate that an agent asked for
// belongs to the agent.
func nothingLeft(ctx context.Context, p *pair, before map[string]string) error {
	return eventually.Is(ctx, recovery, "nothing to be left", func(ctx context.Context) error {
		after, err := snapshots(ctx, p)
		if err != nil {
			return err
		}
		var left []string
		for name, marks := range after {
			if strings.Contains(name, " certificatesigningrequests ") || strings.HasSuffix(name, " peeringpolicies /aa-terms") {
				continue
			}
			if was, ok := before[name]; !ok || was != marks {
				left = append(left, name+" "+marks)
			}
		}
		if slices.Sort(left); len(left) > 0 {
			return errors.New("what differs from before:\n" + strings.Join(left, "\n"))
		}
		return nil
	})
}

// settle makes a peering with a pod at work, for all rounds of a chapter.
func (o *ordeal) settle(t *testing.T) {
	t.Helper()
	ctx := t.Context()
	if err := errors.Join(join(ctx, o.home, o.abroad), contracted(ctx, o)); err != nil {
		t.Fatal(err)
	}
	var err error
	if o.provider, err = partyOf(ctx, o.abroad); err != nil {
		t.Fatal(err)
	}
	namespace, remote := offloaded(t, o.home, o.abroad)
	o.remote, o.worked = remote, time.Now()
	p := remotePod(namespace, "works", func(p *corev1.Pod) { p.Spec.Containers[0].Resources.Requests = amounts("cpu=1") })
	if err := o.home.client.Create(ctx, p); err != nil {
		t.Fatal(err)
	}
	if err := runs(ctx, o.home, p); err != nil {
		t.Fatal(err)
	}
	var node corev1.Node
	if err := o.home.get(ctx, nodeName, &node); err != nil {
		t.Fatal(err)
	}
	pods, err := podsAbroad(ctx, o.abroad, remote)
	if err != nil || len(pods) != 1 {
		t.Fatalf("abroad are %v, %v", pods, err)
	}
	o.node = node.UID
	for _, uid := range pods {
		o.pod = types.UID(uid)
	}
}

// undisturbed checks that node and pod are those of the beginning, and that what
// both count of the pod's use is no more than it used.
func (o *ordeal) undisturbed(ctx context.Context) error {
	var node corev1.Node
	if err := o.home.get(ctx, nodeName, &node); err != nil {
		return err
	}
	if node.UID != o.node || node.Spec.Unschedulable {
		return fmt.Errorf("the node is %s, cordoned %t, and was %s", node.UID, node.Spec.Unschedulable, o.node)
	}
	pods, err := podsAbroad(ctx, o.abroad, o.remote)
	if err != nil {
		return err
	}
	for _, uid := range pods {
		if len(pods) != 1 || types.UID(uid) != o.pod {
			err = errors.Join(err, fmt.Errorf("abroad are %v, and it was %s", pods, o.pod))
		}
	}
	for _, c := range []*cluster{o.home, o.abroad} {
		held, found := theOnly(ctx, c)
		if found != nil {
			err = errors.Join(err, found)
			continue
		}
		err = errors.Join(err, o.sane(c, held))
	}
	return err
}

// sane checks a cluster's count of use: one processor, no longer than there was a
// pod, and never back.
func (o *ordeal) sane(c *cluster, held *v1alpha1.Contract) error {
	const percent = 1.01
	usage, last := held.Status.Usage, o.counted[c.name]
	if usage == nil {
		return fmt.Errorf("%s counts no use", c.name)
	}
	o.counted[c.name] = *usage
	if usage.Until.After(time.Now().Add(time.Second)) || usage.Until.Before(&usage.Since) || usage.Sequence < last.Sequence || usage.Until.Time.Before(last.Until.Time) {
		return fmt.Errorf("%s counted period %d from %s to %s, and before that %d to %s", c.name, usage.Sequence, usage.Since, usage.Until, last.Sequence, last.Until)
	}
	limit := func(from, to time.Time) float64 {
		if from.Before(o.worked) {
			from = o.worked
		}
		return max(to.Sub(from).Seconds(), 0)*percent + 0.01
	}
	if cpu := unitSeconds(usage.UnitSeconds["cpu"]); cpu > limit(usage.Since.Time, usage.Until.Time) {
		return fmt.Errorf("%s counted %.3f processor-seconds from %s to %s", c.name, cpu, usage.Since, usage.Until)
	}
	for _, p := range usage.Periods {
		if cpu := unitSeconds(p.UnitSeconds["cpu"]); cpu > limit(p.Since.Time, p.Until.Time) {
			return fmt.Errorf("%s counted %.3f processor-seconds from %s to %s", c.name, cpu, p.Since, p.Until)
		}
	}
	for _, kind := range []string{"StatementsValid", "UsageAgrees"} {
		if s := meta.FindStatusCondition(held.Status.Conditions, kind); s != nil && s.Status != "True" {
			return fmt.Errorf("%s is %s: %s: %s", kind, s.Status, s.Reason, s.Message)
		}
	}
	statements, err := statementsOf(held, o.provider)
	if err != nil {
		return err
	}
	for i, s := range statements {
		if cpu := unitSeconds(s.Used["cpu"].String()); cpu > limit(s.From, s.To) {
			return fmt.Errorf("statement %d at %s has %.3f processor-seconds from %s to %s", s.Sequence, c.name, cpu, s.From, s.To)
		}
		if i == 0 {
			continue
		}
		before, err := peering.ParseEnvelope([]byte(held.Status.Statements[i-1].Envelope))
		if err != nil {
			return err
		}
		if s.Previous != before.Hash() || s.Sequence != statements[i-1].Sequence+1 || !s.From.Equal(statements[i-1].To) {
			return fmt.Errorf("statement %d at %s does not follow the one before it", s.Sequence, c.name)
		}
	}
	return nil
}

// logEnd is where the agent's log ends now.
func (p *process) logEnd() (int64, error) {
	info, err := os.Stat(p.log)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// since returns what the agent logged from a place on.
func (p *process) since(from int64) (string, error) {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return "", err
	}
	return string(text[min(from, int64(len(text))):]), nil
}

// logs waits until the agent has logged a text, from a place on.
func (p *process) logs(ctx context.Context, from int64, text string) error {
	f, err := os.Open(p.log)
	if err != nil {
		return err
	}
	defer f.Close()
	buffer, seen := make([]byte, 64<<10), ""
	for limit := time.Now().Add(soon); time.Now().Before(limit) && ctx.Err() == nil; {
		n, _ := f.ReadAt(buffer, from)
		from, seen = from+int64(n), seen+string(buffer[:n])
		if strings.Contains(seen, text) {
			return nil
		}
		seen = seen[max(len(seen)-len(text), 0):]
		if n == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	return errors.Join(fmt.Errorf("%s does not log %s", p.name, text), ctx.Err())
}

// reasonOf is the reason of an agent's error, for counts of failures.
func reasonOf(err error) string { return string(wire.ReasonOf(err)) }
