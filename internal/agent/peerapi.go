package agent

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/client"
	ententev1 "github.com/entente-dev/entente/gen/entente/v1"
	"github.com/entente-dev/entente/internal/chartpolicies"
	"github.com/entente-dev/entente/internal/direct"
	"github.com/entente-dev/entente/internal/fencing"
	"github.com/entente-dev/entente/internal/heartbeat"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/offload"
	"github.com/entente-dev/entente/internal/provider"
	"github.com/entente-dev/entente/internal/records"
	"github.com/entente-dev/entente/internal/refused"
	"github.com/entente-dev/entente/internal/session"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
)

func (a *agent) startProvider(_ context.Context, dnsService string) error {
	contracts := &contractCache{self: a.source.ID(), provider: a.provider, reader: store.NewContractReader(maxVerified), homeAPI: a.homeAPIHere}
	a.contracts = contracts
	a.fences = &fencing.Keeper{Clock: fencing.Clock(), Wall: time.Now, Log: a.log, Stopped: func(f fencing.Fence, pods int) {
		ns := &corev1.ObjectReference{APIVersion: "v1", Kind: "Namespace", Name: f.Namespace}
		a.events.Eventf(ns, nil, corev1.EventTypeWarning, "Fenced", "Fence",
			"stopped %d pods: their home has not responded for as long as its fence of %s allows", pods, f.Length)
	}}
	counted := notify.Gather(usePause, usePause, a.contractsWake.wake)
	opened := notify.Gather(podsPause, exposurePause, func(contract string) {
		a.wakePeer(contracts.peer(contract))
		a.servedChanged(contracts.peer(contract))
	})
	used := notify.Gather(podsPause, podsPause, func(contract string) {
		if c, ok := contracts.granted(contract); ok && c.AcceptNew {
			counted(contract)
		} else { // it ends with its last pod
			a.contractsWake.wake(contract)
		}
	})
	cheap, err := records.New(a.direct, a.cfg.Kubernetes)
	if err != nil {
		return err
	}
	a.offloaded, err = offload.New(offload.Config{
		Client: cheap, REST: a.cfg.Kubernetes, Contracts: contracts.granted, Trusted: a.bundles.IDs,
		// Of the addresses that a consumer names only its own pods are believed; the pods that it runs here are
		// known by their UIDs.
		Translate: a.addresses.endpoint, Stops: a.fences.Stops, Served: notify.Gather(podsPause, exposurePause, a.servedChanged),
		// Its aliases of this cluster's pods are believed only if this cluster has such pods.
		Self: string(a.source.ID()), Own: a.addresses.ownPod, KnownAs: a.addresses.knownAs, Zone: a.zoneOf,
		Namespace: a.cfg.Namespace, ServiceAccount: ServiceAccount, Resolver: a.resolver(dnsService), Here: a.policyTerms(dnsService),
		Changed: func(contract string) {
			used(contract)
			opened(contract)
		},
		Log: a.log,
	})
	if err != nil {
		return err
	}
	a.fences.Stock = a.offloaded
	a.directly = &direct.Provider{Client: a.mgr.GetClient(), Pods: a.offloaded, Named: a.addresses.named, Unsure: func(contract string, known bool) bool {
		return a.startup.Unsure(contract, known, time.Now())
	}}
	a.states.Running = a.directly.Running
	a.refused = refused.New(refused.Config{Log: a.log, Events: a.events, Find: func(ctx context.Context, peer peering.ClusterID) (*v1alpha1.ForeignCluster, error) {
		return store.Find(ctx, a.mgr.GetClient(), peer)
	}})
	return errors.Join(register(a.refused), a.run(a.refused.Run), a.run(a.offloaded.Run), a.run(a.provider.Run), a.run(a.fences.Run))
}

// counted is what runs here for peers. It implements server.OffloadObjects, and counts what is refused.
type counted struct {
	*offload.Provider
	a *agent
}

func (c counted) Apply(ctx context.Context, contract string, o peering.Object) error {
	err := c.Provider.Apply(ctx, contract, o)
	c.a.refused.Applied(c.a.contracts.peer(contract), o.Ref, err, time.Now())
	return err
}

// peerAPI builds the API that other clusters call, and the sessions that carry it.
func (a *agent) peerAPI(ctx context.Context, cfg peerConfig) error {
	measured, err := a.podMetrics()
	if err != nil {
		return err
	}
	offloadService, err := server.NewOffload(server.OffloadConfig{
		Objects: counted{a.offloaded, a}, Streams: a.offloaded, Metrics: measured, Contracts: a.contracts.offered, Fences: a.fences,
		Peer: func(ctx context.Context) (peering.ClusterID, bool) {
			info, ok := identity.PeerFromContext(ctx)
			return info.ID, ok && info.Trusted
		},
		Log: a.log,
	})
	if err != nil {
		return err
	}
	a.groups = a.newGroups()
	if a.thirds, err = a.buildThirds(cfg.Carry); err != nil {
		return err
	}
	a.exports = a.exportedServices()
	peer, err := server.NewPeer(server.PeerConfig{
		Log: a.log, Credentials: session.ServerCredentials(), Self: a.source.ID(), Trusted: a.bundles.Has,
		Trust: joining{a}, Introductions: a.introductions(), Proofs: proofs{a.groups, a.self},
		Negotiator: negotiator{Provider: a.provider, checkProtocol: a.exchange.CheckProtocol}, Contracts: a.contractCalls(), Offers: a.provider, Sessions: a.exchange, Offload: offloadService, Exports: a.exports, Datagrams: a.datagramsOfPeers(), Carrier: a.thirds, HomeAPI: homeAPI{a.home},
		// A dead connection does not show if nothing is written, and blocks the next session.
		Silent: func(number uint64) { a.sessions.CloseSession(number, errKeepalive) },
	})
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", cfg.Address)
	if err != nil {
		return fmt.Errorf("listen for peers on %s: %w", cfg.Address, err)
	}
	inBand, err := a.listenInBand(ctx, cfg.InBand)
	if err != nil {
		return err
	}
	sessions := session.Config{
		Source: a.source, Bundles: a.bundles, Server: peer.GRPC(), Listener: listener, InBand: inBand, DialInBand: a.dialInBand, Up: a.talk, Log: a.log,
		Denied: a.trust.isDenied, MayDial: a.mayDial, ClientOptions: []grpc.DialOption{grpc.WithDefaultCallOptions(boundedResponses())},
	}
	if cfg.Carry.Through {
		sessions.Carried, sessions.DialThrough, sessions.Carries = a.thirds.listener, a.thirds.dial, a.exchange.Carries
	}
	if a.sessions, err = session.New(sessions); err != nil {
		return err
	}
	a.trust.sessions = a.sessions
	a.offers = a.watchOffers()
	return a.run(func(ctx context.Context) error { return peer.Run(ctx) })
}

// runSessions dials and accepts sessions once all peers are known.
func (a *agent) runSessions(context.Context) error {
	counted := []prometheus.Collector{a.sessions.Collector()}
	if c := a.thirds.carrier; c != nil {
		counted = append(counted, c.Collector())
	}
	if err := register(counted...); err != nil {
		return err
	}
	policies := chartpolicies.New(a.direct, a.cfg.Namespace, a.log)
	return errors.Join(a.run(a.exchange.Run), a.run(policies.Run), a.run(func(ctx context.Context) error {
		if err := a.peers.Load(ctx); err != nil {
			return err
		}
		policies.Tried(ctx)
		a.serving.Store(true)
		defer a.serving.Store(false)
		return a.sessions.Run(ctx)
	}), a.run(a.watchSessions), a.run(a.watchOwn))
}

var errKeepalive = fmt.Errorf("the peer sent nothing for %s", heartbeat.SessionTimeout)

// talk runs the state exchange of a session that this side dialled, as long as the session lives: the side that
// dialled opens the exchange. For other sessions it returns at once, so that they have no goroutine.
func (a *agent) talk(ctx context.Context, s session.Info) error {
	a.exchange.Started(s.Peer, s.Number)
	a.wakePeer(s.Peer)
	listened := a.offers.Follow(ctx, s.Peer)
	ended := func() {
		listened()
		a.exchange.Ended(s.Peer, s.Number)
		a.wakePeer(s.Peer)
	}
	if !s.Dialled {
		context.AfterFunc(ctx, ended)
		return nil
	}
	defer ended()
	return client.RunSession(ctx, a.sessions.Conn(s.Peer), heartbeat.Config{
		Timeout: heartbeat.SessionTimeout,
		Current: func(ctx context.Context) (*ententev1.PeerState, error) { return a.exchange.State(ctx, s.Peer) },
		Watch:   func(changed func()) func() { return a.exchange.Watch(s.Peer, changed) },
		Observe: func(ctx context.Context, state *ententev1.PeerState) error {
			return a.exchange.Observe(ctx, s.Peer, state)
		},
	})
}

// watchOwn reconciles peers, and updates the states sent to them, when this cluster's own endpoints or prefixes
// change. Both follow from objects that change all the time for other reasons.
func (a *agent) watchOwn(ctx context.Context) error {
	for last := ""; ; {
		prefixes, _, err := a.states.Prefixes(ctx)
		if now := fmt.Sprint(a.endpoints(), prefixes, err); now != last {
			if last != "" {
				a.wakePeers()
			}
			last = now
		}
		if !notify.Pause(ctx, ownPoll) {
			return nil
		}
	}
}

// negotiator negotiates with peers whose protocol this agent supports. It implements server.Negotiator.
type negotiator struct {
	*provider.Provider
	checkProtocol func(ctx context.Context, peer peering.ClusterID) error
}

func (n negotiator) Advertise(ctx context.Context, peer peering.ClusterID, ask peering.Ask) (peering.Advertisement, error) {
	if err := n.checkProtocol(ctx, peer); err != nil {
		return peering.Advertisement{}, err
	}
	return n.Provider.Advertise(ctx, peer, ask)
}

func (n negotiator) Sign(ctx context.Context, peer peering.ClusterID, envelope peering.Envelope) (peering.Envelope, error) {
	if err := n.checkProtocol(ctx, peer); err != nil {
		return peering.Envelope{}, err
	}
	return n.Provider.Sign(ctx, peer, envelope)
}
