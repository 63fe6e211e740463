package control

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/integration/eventually"
	"github.com/entente-dev/entente/integration/only"
	"github.com/entente-dev/entente/internal/heartbeat"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/session"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
)

const (
	// leafLife is how long certificates live here.
	leafLife = 20 * time.Second
	// callRate is how many calls a second each side makes at the other, leastRate how
	// many of them have to be made on a machine with nothing else to do. awayRate is how
	// many each makes at the peer that goes away, and that makes at each.
	callRate  = 52
	leastRate = 50
	awayRate  = 3
	// callTimeout is when a call has failed, on a busy machine.
	callTimeout = 20 * time.Second
	// atOnce is how many calls of a kind are under way at most: where the machine does
	// not keep up there are fewer calls, and no agent turns any away for their number.
	// What was missed is made up for, but not faster than catchUp times the rate.
	atOnce  = 64
	catchUp = 1.4
	// admins is how many administrators make one side's calls: each has a rate.
	admins = 6
)

// TestCertificatesAndKeysChangeUnderLoad: certificates live for 20 s and each side
// replaces its root once, while both call each other over their session, and a
// third cluster calls both. No call fails, no session ends, no agent restarts. The
// third is away while the roots are replaced, and reconnects by itself.
// ENTENTE_SOAK=1 is for five minutes instead of 45 s, and then there have to be
// leastRate calls a second each way, which a machine that is busy does not make.
func TestCertificatesAndKeysChangeUnderLoad(t *testing.T) {
	only.Matrix(t, "a minute; package session has sessions outlive certificates under calls")
	home, abroad := agents(t)
	ctx := t.Context()
	last, least := 45*time.Second, map[string]float64{}
	if os.Getenv("ENTENTE_SOAK") != "" {
		last = 5 * time.Minute
		for _, c := range []*cluster{home, abroad} {
			least[c.name+" to "+peerOf(c)] = leastRate
		}
	}
	shortLived(t, home, abroad)
	for _, c := range []*cluster{home, abroad} {
		offerBy(t, c, func(*v1alpha1.PeeringPolicySpec) {}, "cpu=8", "memory=16Gi", "pods=40")
	}
	contract := peered(t, home, abroad, "cpu=2", "memory=4Gi", "pods=10")
	third := newThird(t)
	third.arrive(t)
	for _, c := range []*cluster{home, abroad} {
		third.peer(t, c)
	}

	pids, logs, sessions := map[*cluster]int{}, map[*cluster]int64{}, map[*cluster]v1alpha1.PeerSession{}
	for _, c := range []*cluster{home, abroad} {
		var err error
		if logs[c], err = c.logEnd(); err != nil {
			t.Fatal(err)
		}
		pids[c] = c.cmd.Process.Pid
		s, err := sessionOf(ctx, c, peerOf(c))
		if err != nil {
			t.Fatal(err)
		}
		sessions[c] = *s
	}

	// The calls. Each side's are previews of an ask, which its agent makes over the
	// session with the other.
	begin := time.Now()
	at := func(part float64) { time.Sleep(time.Until(begin.Add(time.Duration(part * float64(last))))) }
	calls := &load{begin: begin}
	running, stop := context.WithCancel(ctx)
	defer stop()
	for _, c := range []*cluster{home, abroad} {
		ask := previews(t, c)
		calls.run(running, c.name+" to "+peerOf(c), callRate, func(ctx context.Context) error { return ask(ctx, peerOf(c)) })
		calls.run(running, c.name+" to third", awayRate, func(ctx context.Context) error { return ask(ctx, "third") })
		calls.run(running, "third to "+c.name, awayRate, func(ctx context.Context) error { return third.call(ctx, c) })
	}
	watched := make(chan error, 1)
	seen := map[*cluster]map[int64]bool{home: {}, abroad: {}}
	go func() { watched <- watchSession(running, sessions, seen) }()

	at(0.1)
	away := calls.except("home to third", "abroad to third", "third to home", "third to abroad")
	third.leave(t)
	at(0.15)
	rollover(t, home)
	at(0.3)
	rollover(t, abroad)
	// Both old roots are gone by the time that the third is back.
	time.Sleep(time.Until(time.Now().Add(leafLife + 2*time.Second)))
	at(0.75)
	back := time.Now()
	third.arrive(t)
	for _, c := range []*cluster{home, abroad} {
		third.connected(t, c)
		err := eventually.Is(ctx, later, c.name+" to be connected with the third", func(ctx context.Context) error {
			_, err := sessionOf(ctx, c, "third")
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	t.Logf("the third was connected with both %.1fs after it came back", time.Since(back).Seconds())
	away()
	numbers := third.numbers()
	at(1)
	if rest := 10*time.Second - time.Since(back); rest > 0 {
		time.Sleep(rest)
	}
	took := time.Since(begin)
	stop()
	calls.wg.Wait()
	if err := <-watched; err != nil {
		t.Error(err)
	}

	calls.report(t, took, least)
	if now := third.numbers(); now != numbers {
		t.Errorf("the third's sessions were %s and are %s", numbers, now)
	}
	for _, c := range []*cluster{home, abroad} {
		if pid := c.cmd.Process.Pid; !c.running() || pid != pids[c] {
			t.Errorf("the agent of %s was restarted", c.name)
		}
		// The log also has lines between two polls.
		text, err := c.since(logs[c])
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.SplitSeq(text, "\n") {
			if strings.Contains(line, `msg="session `) && strings.Contains(line, "peer="+clusterID(t, c, peerOf(c))) {
				t.Errorf("%s logs %s", c.name, line)
			}
		}
		renewals := strings.Count(text, `msg="certificate renewed"`)
		t.Logf("%s renewed its certificate %d times in %.0fs, and saw %d ends of the other's", c.name, renewals, took.Seconds(), len(seen[c]))
		if want := int(took / leafLife); renewals < want || len(seen[c]) < want {
			t.Errorf("%s renewed its certificate %d times and saw %d of the other's, want %d at least", c.name, renewals, len(seen[c]), want)
		}
	}
	holdNewRootsOnly(t, home.pair, third)
	// What is signed from here on is signed by the new keys.
	edit(t, home, requestName, func(s *v1alpha1.PeeringRequest) { s.Spec.Resources[corev1.ResourceCPU] = resource.MustParse("3") })
	if _, err := agreeOn(ctx, home, abroad, contract, 2, "3", later); err != nil {
		t.Error(err)
	}
}

// shortLived makes both agents' certificates live for leafLife during a test.
func shortLived(t *testing.T, clusters ...*cluster) {
	t.Helper()
	change := func(ctx context.Context, flags ...string) error {
		return clusters[0].pair.both(func(c *cluster) error {
			c.flags = flags
			return c.restart(ctx)
		})
	}
	t.Cleanup(func() {
		if err := change(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	if err := change(t.Context(), "--leaf-life="+leafLife.String()); err != nil {
		t.Fatal(err)
	}
	for _, c := range clusters {
		if !c.running() {
			t.Fatalf("the agent of %s does not run", c.name)
		}
	}
}

func rollover(t *testing.T, c *cluster) {
	t.Helper()
	rolled, err := call(t.Context(), c, func(ctx context.Context, a ententev1.AdminServiceClient) (*ententev1.RolloverIdentityResponse, error) {
		return a.RolloverIdentity(ctx, &ententev1.RolloverIdentityRequest{})
	})
	if err != nil {
		t.Fatalf("%s: %v", c.name, err)
	}
	t.Logf("%s has another root; the old one is shown for another %.0fs", c.name, time.Until(rolled.GetOverlapEndTime().AsTime()).Seconds())
}

// sessionOf returns a cluster's session with a peer.
func sessionOf(ctx context.Context, c *cluster, peer string) (*v1alpha1.PeerSession, error) {
	var fc v1alpha1.ForeignCluster
	if err := c.get(ctx, peer, &fc); err != nil {
		return nil, err
	}
	if fc.Status.Session == nil {
		return nil, fmt.Errorf("%s has no session with %s: %w", c.name, peer, conditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected))
	}
	return fc.Status.Session, conditionTrue(fc.Status.Conditions, v1alpha1.ConditionConnected)
}

// watchSession says in what sessions differ from what they were, until ctx ends. It
// notes the ends of the certificates that peers showed.
func watchSession(ctx context.Context, were map[*cluster]v1alpha1.PeerSession, seen map[*cluster]map[int64]bool) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(500 * time.Millisecond):
		}
		for c, was := range were {
			s, err := sessionOf(context.WithoutCancel(ctx), c, peerOf(c))
			switch {
			case err != nil:
				return err
			case !s.Since.Equal(&was.Since) || s.Dialled != was.Dialled:
				return fmt.Errorf("the session of %s is %+v and was %+v", c.name, s, was)
			case s.CertificateNotAfter != nil:
				seen[c][s.CertificateNotAfter.Unix()] = true
			}
		}
	}
}

// clusterID returns the ID of a cluster's peer.
func clusterID(t *testing.T, c *cluster, peer string) string {
	t.Helper()
	var fc v1alpha1.ForeignCluster
	if err := c.get(t.Context(), peer, &fc); err != nil {
		t.Fatal(err)
	}
	return fc.Spec.ClusterID
}

// holdNewRootsOnly waits until all hold each other's new root and no old one, and
// know it of each other.
func holdNewRootsOnly(t *testing.T, p *pair, third *third) {
	t.Helper()
	for _, c := range p.clusters() {
		id := peering.ClusterID(clusterID(t, c, peerOf(c)))
		err := eventually.Is(t.Context(), 2*later, c.name+" and the third to hold the other's new root only", func(ctx context.Context) error {
			var fc v1alpha1.ForeignCluster
			if err := c.get(ctx, peerOf(c), &fc); err != nil {
				return err
			}
			held, err := identity.ReadBundlePEM(id, []byte(fc.Spec.TrustBundle))
			if err != nil {
				return err
			}
			for who, b := range map[string]identity.Bundle{c.name: held, "the third": third.holds(id)} {
				if len(b.Roots) != 1 || len(b.Succession) == 0 {
					return fmt.Errorf("%s holds %d roots and %d steps", who, len(b.Roots), len(b.Succession))
				}
			}
			return nil
		})
		if err != nil {
			t.Error(err)
		}
	}
}

// previews returns what asks a cluster's agent to ask a peer, as several users of
// the admin API: one has not enough calls a second.
func previews(t *testing.T, c *cluster) func(ctx context.Context, peer string) error {
	t.Helper()
	var callers []*client.Admin
	for i := range admins {
		bearer, err := c.user(t.Context(), fmt.Sprintf("control-load-%d", i), "entente-admin")
		if err != nil {
			t.Fatal(err)
		}
		admin, err := c.admin(t.Context(), bearer)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { admin.Close() })
		callers = append(callers, admin)
	}
	var next atomic.Uint64
	return func(ctx context.Context, peer string) error {
		_, err := callers[next.Add(1)%admins].CreatePeering(ctx, &ententev1.CreatePeeringRequest{
			Peer: "peers/" + peer, PeeringRequest: "load", NoNetwork: true, ValidateOnly: true,
			Resources: &ententev1.ResourceList{Amounts: map[string]string{"cpu": "1", "pods": "1"}},
		})
		return err
	}
}

// load is a stream of calls.
type load struct {
	begin time.Time
	wg    sync.WaitGroup
	mu    sync.Mutex
	calls map[string]*count
}

// count counts the calls of one kind. While allowed, they may fail. took are the durations of those
// that succeeded, full is how often no slot was free for a call when it was due.
type count struct {
	allowed                  bool
	ok, failed, missed, full int
	took                     []time.Duration
	failures                 []string
}

// run makes calls of a kind, so many a second, until ctx ends. None waits for the one
// before it.
func (l *load) run(ctx context.Context, kind string, rate int, do func(context.Context) error) {
	c := &count{}
	l.mu.Lock()
	if l.calls == nil {
		l.calls = map[string]*count{}
	}
	l.calls[kind] = c
	l.mu.Unlock()
	l.wg.Go(func() {
		pause := time.Second / time.Duration(rate)
		places := make(chan struct{}, atOnce)
		for due := time.Now(); ; due = due.Add(pause) {
			// A late caller catches up, but does not flood.
			wait := max(time.Until(due), time.Duration(float64(pause)/catchUp))
			select {
			case <-ctx.Done():
				return
			case <-time.After(wait):
			}
			if len(places) == atOnce {
				l.mu.Lock()
				c.full++
				l.mu.Unlock()
			}
			select {
			case <-ctx.Done():
				return
			case places <- struct{}{}:
			}
			l.wg.Go(func() {
				defer func() { <-places }()
				// The end does not cut off what was started.
				one, cancel := context.WithTimeout(context.WithoutCancel(ctx), callTimeout)
				defer cancel()
				allowed, began := l.allowed(kind), time.Now()
				err := do(one)
				l.done(kind, allowed, time.Since(began), err)
			})
		}
	})
}

func (l *load) allowed(kind string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.calls[kind].allowed
}

var errAway = errors.New("the third is away")

func (l *load) done(kind string, allowed bool, took time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch c := l.calls[kind]; {
	case err == nil:
		c.ok++
		c.took = append(c.took, took)
	case allowed || c.allowed:
		c.missed++
	default:
		c.failed++
		if len(c.failures) < 5 {
			c.failures = append(c.failures, fmt.Sprintf("at %.1fs: %s: %v", time.Since(l.begin).Seconds(), reasonOf(err), err))
		}
	}
}

// except lets calls of these kinds fail until the function that it returns is
// called.
func (l *load) except(kinds ...string) func() {
	set := func(allowed bool) {
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, kind := range kinds {
			l.calls[kind].allowed = allowed
		}
	}
	set(true)
	return func() { set(false) }
}

// report fails the test for each kind of calls of which some failed, or fewer a second
// were made than there have to be, or none.
func (l *load) report(t *testing.T, took time.Duration, least map[string]float64) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	all := 0
	for _, kind := range sorted(l.calls) {
		c := l.calls[kind]
		all += c.ok
		slices.Sort(c.took)
		part := func(p float64) time.Duration {
			if len(c.took) == 0 {
				return 0
			}
			return c.took[int(p*float64(len(c.took)-1))].Round(time.Millisecond)
		}
		rate := float64(c.ok) / took.Seconds()
		t.Logf("%s: %d calls, %.1f a second, p50 %s, p99 %s, longest %s; %d failed, %d more while the third was away; %d had to wait for a place",
			kind, c.ok, rate, part(0.5), part(0.99), part(1), c.failed, c.missed, c.full)
		if c.failed > 0 {
			t.Errorf("%s: %d calls failed: %s", kind, c.failed, strings.Join(c.failures, "\n"))
		}
		if c.ok == 0 || rate < least[kind] {
			t.Errorf("%s: %.1f calls a second succeeded, want %.0f at least", kind, rate, least[kind])
		}
	}
	t.Logf("%d calls in all, %.1f a second", all, float64(all)/took.Seconds())
}

// third is a cluster of the test's own: an identity, and its end of the protocol.
// It consumes from both clusters and would grant them resources.
type third struct {
	source   *identity.Source
	bundles  *identity.Bundles
	endpoint string

	mu        sync.Mutex
	held      map[peering.ClusterID]identity.Bundle
	peers     []session.Peer
	ids       map[*cluster]peering.ClusterID
	contracts map[*cluster]string
	watches   []func()
	// sessions is nil while it is away; stop ends what it does.
	sessions *session.Manager
	stop     func()

	ententev1.UnimplementedPeeringServiceServer
	ententev1.UnimplementedTrustServiceServer
}

func newThird(t *testing.T) *third {
	t.Helper()
	id, err := identity.Generate(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	p := &third{
		bundles: identity.NewBundles(), held: map[peering.ClusterID]identity.Bundle{},
		ids: map[*cluster]peering.ClusterID{}, contracts: map[*cluster]string{},
	}
	if p.source, err = identity.NewSource(identity.SourceConfig{Identity: id, LeafLife: leafLife}); err != nil {
		t.Fatal(err)
	}
	addresses, err := freeAddresses(1)
	if err != nil {
		t.Fatal(err)
	}
	p.endpoint = addresses[0]
	t.Cleanup(func() { p.leave(t) })
	return p
}

// arrive begins to keep sessions.
func (p *third) arrive(t *testing.T) {
	t.Helper()
	listener, err := new(net.ListenConfig).Listen(t.Context(), "tcp", p.endpoint)
	if err != nil {
		t.Fatal(err)
	}
	calls := grpc.NewServer(grpc.Creds(session.ServerCredentials()))
	ententev1.RegisterPeeringServiceServer(calls, p)
	ententev1.RegisterTrustServiceServer(calls, p)
	var sessions *session.Manager
	sessions, err = session.New(session.Config{
		Source: p.source, Bundles: p.bundles, Server: calls, Listener: listener,
		Up: func(ctx context.Context, s session.Info) error {
			if !s.Dialled {
				<-ctx.Done()
				return nil
			}
			return client.RunSession(ctx, sessions.Conn(s.Peer), p.exchange(s.Peer))
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := sessions.Run(ctx); err != nil {
			t.Errorf("the third: %v", err)
		}
	})
	wg.Go(func() { _ = p.source.Run(ctx) })
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sessions, p.stop = sessions, func() { cancel(); wg.Wait() }
	sessions.SetPeers(p.peers)
}

// leave ends all that it does at once, as a power cut would.
func (p *third) leave(t *testing.T) {
	t.Helper()
	p.mu.Lock()
	stop := p.stop
	p.sessions, p.stop = nil, nil
	p.mu.Unlock()
	if stop != nil {
		stop()
	}
}

// peer joins a cluster and makes a contract with it.
func (p *third) peer(t *testing.T, c *cluster) {
	t.Helper()
	ctx := t.Context()
	text, err := createToken(ctx, c)
	if err != nil {
		t.Fatal(err)
	}
	token, err := jointoken.Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	info, err := client.Join(ctx, client.JoinConfig{
		Token: token, Source: p.source, Self: identity.ClusterInfo{Name: "third", Endpoints: []string{p.endpoint}, Bundle: p.source.Identity().TrustBundle()},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := p.hold(token.Issuer, info.Bundle); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.peers = append(p.peers, session.Peer{ID: token.Issuer, Endpoints: info.Endpoints})
	p.ids[c] = token.Issuer
	p.sessions.SetPeers(p.peers)
	conn := p.sessions.Conn(token.Issuer)
	p.mu.Unlock()
	p.connected(t, c)
	one, err := peering.ParseResources(map[string]string{"cpu": "1"})
	if err != nil {
		t.Fatal(err)
	}
	err = eventually.Is(ctx, soon, "the third's contract with "+c.name, func(ctx context.Context) error {
		ad, err := client.Peering{Conn: conn}.Request(ctx, peering.Ask{RequestID: "third", Resources: one})
		if err != nil {
			return err
		}
		party, err := partyOf(ctx, c)
		if err != nil {
			return err
		}
		p.mu.Lock()
		p.contracts[c] = ad.ContractID
		p.mu.Unlock()
		return stranger{p.source.Identity(), conn}.sign(ctx, ad, party)
	})
	if err != nil {
		t.Fatal(err)
	}
}

// connected waits until it has a session with a cluster.
func (p *third) connected(t *testing.T, c *cluster) {
	t.Helper()
	err := eventually.Is(t.Context(), 2*later, "the third to be connected with "+c.name, func(context.Context) error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if s := p.sessions.Status(p.ids[c]); s.Session == nil {
			return errors.Join(errors.New("it is not"), s.Err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// numbers identifies its sessions.
func (p *third) numbers() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := ""
	for _, s := range p.sessions.Sessions() {
		out += fmt.Sprintf("%s %d ", s.Peer.Short(), s.Number)
	}
	return out
}

// call asks a cluster for its contract.
func (p *third) call(ctx context.Context, c *cluster) error {
	p.mu.Lock()
	sessions, id, contract := p.sessions, p.ids[c], p.contracts[c]
	p.mu.Unlock()
	if sessions == nil {
		return errAway
	}
	_, err := client.Peering{Conn: sessions.Conn(id)}.Contract(ctx, contract)
	return err
}

// hold takes a cluster's trust bundle.
func (p *third) hold(id peering.ClusterID, b identity.Bundle) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if was, ok := p.held[id]; ok {
		if err := identity.Supersedes(was, b); err != nil {
			return err
		}
	}
	p.held[id] = b
	for _, changed := range p.watches {
		changed()
	}
	return p.bundles.Trust(id, b)
}

func (p *third) holds(id peering.ClusterID) identity.Bundle {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held[id]
}

func (p *third) exchange(peer peering.ClusterID) heartbeat.Config {
	return heartbeat.Config{
		Timeout: heartbeat.SessionTimeout,
		Watch: func(changed func()) func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			p.watches = append(p.watches, changed) // one that ended takes no notice
			return func() {}
		},
		Current: func(context.Context) (*ententev1.PeerState, error) {
			p.mu.Lock()
			defer p.mu.Unlock()
			s := peering.PeerState{Protocol: 1, Endpoints: []string{p.endpoint}, BundleHash: p.held[peer].Hash()}
			for c, id := range p.ids {
				if contract := p.contracts[c]; id == peer && contract != "" {
					s.Contracts = []peering.ContractState{{ID: contract, Revision: 1, Phase: peering.PhaseActive}}
				}
			}
			return wire.StateTo(s), nil
		},
		Observe: func(context.Context, *ententev1.PeerState) error { return nil },
	}
}

// Session implements PeeringService for a cluster that dialled.
func (p *third) Session(stream grpc.BidiStreamingServer[ententev1.SessionRequest, ententev1.SessionResponse]) error {
	caller, _ := identity.PeerFromContext(stream.Context())
	return heartbeat.Run(stream.Context(), heartbeat.Stream{
		Send: func(s *ententev1.PeerState) error { return stream.Send(&ententev1.SessionResponse{State: s}) },
		Recv: func() (*ententev1.PeerState, error) {
			m, err := stream.Recv()
			return m.GetState(), err
		},
	}, p.exchange(caller.ID))
}

// WatchOffer implements PeeringService.
func (p *third) WatchOffer(_ *ententev1.WatchOfferRequest, stream grpc.ServerStreamingServer[ententev1.WatchOfferResponse]) error {
	if err := stream.Send(wire.OfferTo(peering.Offer{Message: "only previews"}, nil)); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

// RequestPeering implements PeeringService: it offers the requested amounts.
func (p *third) RequestPeering(_ context.Context, req *ententev1.RequestPeeringRequest) (*ententev1.RequestPeeringResponse, error) {
	ask, err := wire.AskFrom(req.GetRequest())
	if err != nil || !req.GetValidateOnly() {
		return nil, errors.Join(errors.New("the third only says what it offers"), err)
	}
	return &ententev1.RequestPeeringResponse{Advertisement: wire.AdvertisementTo(peering.Advertisement{
		RequestID: ask.RequestID, Revision: 1, ValidUntil: time.Now().Add(time.Minute),
		Grant: peering.Grant{
			Duration: time.Hour,
			Clauses: peering.Clauses{
				Resources: ask.Resources, PodSecurity: peering.PodSecurityBaseline, Exposure: peering.ExposureOffloaded,
			},
		},
	})}, nil
}

// UpdateBundle implements TrustService.
func (p *third) UpdateBundle(ctx context.Context, req *ententev1.UpdateBundleRequest) (*ententev1.UpdateBundleResponse, error) {
	caller, _ := identity.PeerFromContext(ctx)
	info, err := wire.ClusterInfoFrom(req.GetCluster(), caller.ID)
	if err != nil {
		return nil, err
	}
	return &ententev1.UpdateBundleResponse{}, p.hold(caller.ID, info.Bundle)
}
