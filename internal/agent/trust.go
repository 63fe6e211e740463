package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/session"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/jointoken"
	"github.com/entente-dev/entente/server"
)

// self returns this cluster's own ClusterInfo.
func (a *agent) self() identity.ClusterInfo {
	return identity.ClusterInfo{Name: a.name(), Endpoints: a.endpoints(), Bundle: a.source.Identity().TrustBundle()}
}

// joining implements server.Trust.
type joining struct{ a *agent }

// introductions implements server.Introductions.
type introductions struct {
	*trust.Introductions
	selfTo func(peering.ClusterID) identity.ClusterInfo
}

func (a *agent) introductions() introductions {
	return introductions{selfTo: a.selfTo, Introductions: &trust.Introductions{
		Client: a.direct, Cache: a.mgr.GetClient(), Forgotten: a.forgotten, Self: a.source.ID(), Rand: rand.Reader, Now: time.Now,
	}}
}

func (j joining) Join(ctx context.Context, by peering.ClusterID, info identity.ClusterInfo, tokenID string, secret jointoken.Secret) (identity.ClusterInfo, error) {
	self := j.a.self() // before the token is used up, so that nothing can fail after that
	again, err := j.a.tokens.Redeem(ctx, tokenID, secret, by)
	if err != nil {
		return self, err
	}
	if again {
		if _, err := store.AddPeerAgain(ctx, j.a.direct, by, info); err != nil {
			return self, err
		}
		return self, j.a.trust.admit(by, info, true)
	}
	_, err = j.a.addPeer(ctx, by, info, "", true)
	return self, err
}

func (i introductions) Introduce(ctx context.Context, by server.Introduction) (identity.ClusterInfo, [32]byte, error) {
	nonce, err := i.Introductions.Introduce(ctx, by.ID, by.From, by.Info, by.Commitment, by.Requested)
	return i.selfTo(by.ID), nonce, err
}

func (j joining) UpdateBundle(ctx context.Context, id peering.ClusterID, info identity.ClusterInfo) error {
	return store.UpdateBundle(ctx, j.a.direct, id, info)
}

func (j joining) Revoked(ctx context.Context, id peering.ClusterID, message string) error {
	fc, err := store.RecordRevoked(ctx, j.a.direct, id, message, time.Now())
	if err != nil || fc == nil {
		return err
	}
	j.a.events.Eventf(fc, nil, corev1.EventTypeWarning, "Revoked", "Trust", "the peer ended its trust in this cluster: %s", message)
	j.a.wakePeer(id)
	return nil
}

// addPeer records trust and admits the peer's session at once: a cluster that called this one will dial before the
// reconciler has run, and one that was called waits to be dialled.
func (a *agent) addPeer(ctx context.Context, id peering.ClusterID, info identity.ClusterInfo, wanted string, called bool) (string, error) {
	name, err := store.AddPeer(ctx, a.direct, a.mgr.GetClient(), id, info, wanted)
	if err != nil {
		return "", err
	}
	return name, a.trust.admit(id, info, called)
}

// join redeems a token at the cluster that made it.
func (a *agent) join(ctx context.Context, token jointoken.Token, name string) (string, error) {
	info, err := strangers{a}.Join(ctx, token)
	if err != nil {
		return "", err
	}
	return a.addPeer(ctx, token.Issuer, info, name, false)
}

// introduce introduces this cluster at an endpoint and records the cluster that responds, for an administrator to
// decide, or decides at once if approve is set: then id is the cluster that has to respond.
func (a *agent) introduce(ctx context.Context, endpoint string, id peering.ClusterID, name string, approve bool) (string, error) {
	if approve && id == "" {
		return "", peering.Errorf(peering.ReasonRequestInvalid, "name the cluster to approve by its ID")
	}
	met, err := client.Introduce(ctx, client.IntroduceConfig{Endpoint: endpoint, ID: id, Source: a.source, Self: a.self(), Requested: true})
	if err != nil {
		return "", err
	}
	if err := a.forgotten.Remove(ctx, met.ID); err != nil {
		return "", err
	}
	return store.Introduce(ctx, a.direct, store.Introduction{
		ID: met.ID, Info: met.Info, Code: met.Code, Time: time.Now(), Endpoint: endpoint, Name: name, Approve: approve,
	})
}

// strangers calls clusters that may not trust this one yet. It implements trust.Strangers.
type strangers struct{ a *agent }

func (s strangers) Join(ctx context.Context, token jointoken.Token) (identity.ClusterInfo, error) {
	return client.Join(ctx, client.JoinConfig{Token: token, Source: s.a.source, Self: s.a.self()})
}

func (s strangers) Introduce(ctx context.Context, endpoint string, id peering.ClusterID, requested bool) (identity.ClusterInfo, string, error) {
	cfg := client.IntroduceConfig{Endpoint: endpoint, ID: id, Source: s.a.source, Self: s.a.selfTo(id), Requested: requested}
	if endpoint == trust.InBand {
		// The client needs a host and port, which are not dialled in-band.
		cfg.Endpoint = net.JoinHostPort(trust.InBand, "7443")
		cfg.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return s.a.dialInBand(ctx, id) }
	}
	met, err := client.Introduce(ctx, cfg)
	return met.Info, met.Code, err
}

func (s strangers) UpdateBundle(ctx context.Context, id peering.ClusterID) error {
	return client.UpdateBundle(ctx, s.a.sessions.Conn(id), s.a.selfTo(id))
}

// trusted sets bundles and sessions according to the ForeignClusters. It implements controller.Trust.
type trusted struct {
	self    peering.ClusterID
	bundles *identity.Bundles
	// sessions is set once the agent is built.
	sessions *session.Manager

	// nameOf returns the name of a peer here.
	nameOf func(peering.ClusterID) string

	// again reconciles the ForeignClusters again.
	again func()

	mu     sync.Mutex
	denied map[peering.ClusterID]bool
	// bundlesSet is the trust bundles that were set, PEM: reading one verifies signatures.
	bundlesSet map[peering.ClusterID]string
	// admitted is the clusters that just joined.
	admitted map[peering.ClusterID]*admission
	// dialled is the peers that the sessions dial.
	dialled []session.Peer
	// recheck is when Set is called again because of clusters that just joined.
	recheck time.Time
}

// admission is a cluster that just joined.
type admission struct {
	at        time.Time
	endpoints []string
	// called: the cluster called this one to join, so it will dial, too; before it has the response it would refuse
	// this cluster.
	called bool
	// shown: its ForeignCluster was among those that were set since.
	shown bool
}

const (
	// admissionUnseen is how long a cluster that joined is trusted although no ForeignCluster shows it: a cache may
	// be that stale.
	admissionUnseen = 3 * time.Second
	// calledDials is how long a cluster that called to join may take to dial, before this cluster does.
	calledDials = time.Second
)

func (t *trusted) Set(peers []controller.TrustedPeer, denied []peering.ClusterID) {
	now := time.Now()
	t.mu.Lock()
	t.denied = make(map[peering.ClusterID]bool, len(denied))
	for _, id := range denied {
		// A denial from before it joined is outdated.
		if a := t.admitted[id]; a == nil || a.shown {
			t.denied[id] = true
		}
	}
	bundlesSet := t.bundlesSet
	t.mu.Unlock()
	keep := make(map[peering.ClusterID]string, len(peers))
	wanted := make([]controller.TrustedPeer, 0, len(peers))
	for _, p := range peers {
		if p.ID == t.self {
			continue
		}
		if bundlesSet[p.ID] != p.Bundle || !t.bundles.Has(p.ID) {
			bundle, err := identity.ReadBundlePEM(p.ID, []byte(p.Bundle))
			if err != nil || t.bundles.Trust(p.ID, bundle) != nil {
				continue // its conditions say so
			}
		}
		keep[p.ID] = p.Bundle
		wanted = append(wanted, p)
	}
	t.mu.Lock()
	t.bundlesSet = keep
	t.updateAdmissions(wanted, now)
	dial := make([]session.Peer, 0, len(wanted))
	for _, p := range wanted {
		a := t.admitted[p.ID]
		if a != nil && a.called && now.Sub(a.at) < calledDials {
			continue
		}
		dial = append(dial, session.Peer{ID: p.ID, InBand: p.InBand, Ways: p.Ways, Endpoints: p.Endpoints, Also: p.Sighted, Checked: p.Checked, Now: a != nil && !a.called})
	}
	for id, a := range t.admitted {
		if !a.shown && !a.called {
			dial = append(dial, session.Peer{ID: id, Endpoints: a.endpoints, Now: true})
		}
	}
	t.dialled = dial
	t.sessions.SetPeers(dial)
	var gone []peering.ClusterID
	for _, id := range t.bundles.IDs() {
		if a := t.admitted[id]; keep[id] == "" && (a == nil || a.shown) {
			gone = append(gone, id)
		}
	}
	t.mu.Unlock()
	for _, id := range gone {
		t.bundles.Remove(id) // this ends its sessions
	}
}

// updateAdmissions notes which of the clusters that just joined are among the peers, forgets those that need no
// waiting any more, and schedules the next Set. The caller holds the lock.
func (t *trusted) updateAdmissions(peers []controller.TrustedPeer, now time.Time) {
	var later time.Duration
	for _, p := range peers {
		if a := t.admitted[p.ID]; a != nil {
			a.shown = true
		}
	}
	for id, a := range t.admitted {
		left := admissionUnseen - now.Sub(a.at)
		if a.shown {
			left = calledDials - now.Sub(a.at)
		}
		if left <= 0 {
			delete(t.admitted, id)
		} else if later == 0 || left < later {
			later = left
		}
	}
	if at := now.Add(later); later > 0 && (!now.Before(t.recheck) || at.Before(t.recheck)) {
		t.recheck = at
		time.AfterFunc(later, t.again)
	}
}

// admit trusts a cluster before its ForeignCluster is reconciled. One that called this cluster will dial; the other
// is dialled at once.
func (t *trusted) admit(id peering.ClusterID, info identity.ClusterInfo, called bool) error {
	t.mu.Lock()
	delete(t.denied, id)
	if t.admitted == nil {
		t.admitted = map[peering.ClusterID]*admission{}
	}
	t.admitted[id] = &admission{at: time.Now(), endpoints: info.Endpoints, called: called}
	t.mu.Unlock()
	if err := t.bundles.Trust(id, info.Bundle); err != nil || called {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(t.dialled), func(p session.Peer) bool { return p.ID == id })
	t.dialled = append(others, session.Peer{ID: id, Endpoints: info.Endpoints, Now: true})
	t.sessions.SetPeers(t.dialled)
	return nil
}

// isDenied reports whether an administrator denied a cluster.
func (t *trusted) isDenied(id peering.ClusterID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.denied[id]
}

func (t *trusted) Session(id peering.ClusterID) trust.Session {
	status := t.sessions.Status(id)
	if s := status.Session; s != nil {
		return trust.Session{Up: &trust.SessionInfo{
			Dialled: s.Dialled, Endpoint: s.Endpoint, InBand: s.InBand, Through: t.nameOf(s.Through), Since: s.Since,
			RoundTrip: s.RoundTrip, ClockSkew: s.ClockSkew, NotAfter: s.PeerNotAfter,
		}}
	}
	out := trust.Session{
		Why: "no session with the peer's agent yet: it has no endpoint that could be dialled, or has not dialled", At: status.ErrAt,
	}
	if status.Err != nil {
		out.Why = fmt.Sprintf("no session with the peer's agent: %v", status.Err)
	}
	// The refusal of the last try only.
	if refused, ok := errors.AsType[*session.RefusedError](status.Err); ok {
		out.Denied, out.Untrusted = refused.Denied(), refused.Untrusted()
	}
	return out
}

func (t *trusted) Revoke(ctx context.Context, id peering.ClusterID, message string) error {
	return client.Revoke(ctx, t.sessions.Conn(id), message)
}

// watchSessions reconciles peers whose session came, went, or was refused for another reason than before.
func (a *agent) watchSessions(ctx context.Context) error {
	changes, cancel := a.sessions.Subscribe()
	defer cancel()
	renewals, cancelRenewals := a.source.Subscribe()
	defer cancelRenewals()
	seen := map[peering.ClusterID]string{}
	for {
		for _, id := range a.bundles.IDs() {
			s := a.trust.Session(id)
			now := s.Why
			if s.Up != nil {
				now = fmt.Sprint("up ", s.Up.Since.UnixNano(), s.Up.NotAfter.Unix(), s.Up.RoundTrip > 0, s.Up.ClockSkew.Round(time.Second))
			}
			if seen[id] != now {
				seen[id] = now
				a.wakeTrust(id)
			}
		}
		for id := range seen {
			if !a.bundles.Has(id) {
				delete(seen, id)
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-changes:
		case <-renewals:
			// The identity may have a new key, which is sent to peers.
			for id := range seen {
				a.wakeTrust(id)
			}
		}
	}
}

// wakeTrust has a peer, and the trust in it, reconciled again.
func (a *agent) wakeTrust(id peering.ClusterID) {
	if fc := a.addresses.peer(id); fc != nil {
		a.peersWake.wake(fc.Name)
		a.trustWake.wake(fc.Name)
	}
}

// reconcileTrust builds what makes trust follow the ForeignClusters.
func (a *agent) reconcileTrust(context.Context) error {
	a.trusts = &trust.Trusts{
		Client: a.mgr.GetClient(), Direct: a.direct, Namespace: a.cfg.Namespace, Self: a.source.ID(),
		OwnHash:   func() peering.Hash { return a.source.Identity().TrustBundle().Hash() },
		Strangers: strangers{a}, Session: a.trust.Session, Wake: a.trustWake,
		AttemptChanged: a.peersWake.wake,
		Joined: func(id peering.ClusterID, info identity.ClusterInfo) {
			// The ForeignCluster is stored: if its bundle is malformed its conditions say so.
			if err := a.trust.admit(id, info, false); err != nil {
				a.log.Warn("cannot dial a cluster that was just joined", "peer", id, "err", err)
			}
		},
		MayDial: a.mayDial,
		Now:     time.Now,
	}
	return a.trusts.SetupWithManager(a.mgr)
}
