package agent

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/entente-dev/entente/client"
	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/session"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/server"
)

// self is what this cluster says of itself.
func (a *agent) self() wire.ClusterInfo {
	return wire.NewClusterInfo(a.name(), a.endpoints(), a.source.Identity().TrustBundle())
}

// joining is what TrustService needs. It implements server.Trust.
type joining struct {
	a             *agent
	introductions *controller.Introductions
}

func (a *agent) joining() joining {
	return joining{a: a, introductions: &controller.Introductions{
		Client: a.direct, Cache: a.mgr.GetClient(), Self: a.source.ID(), Rand: rand.Reader, Now: time.Now,
	}}
}

// Join implements server.Trust.
func (j joining) Join(ctx context.Context, by peering.ClusterID, info wire.ClusterInfo, tokenID string, secret peering.Secret) (wire.ClusterInfo, error) {
	self := j.a.self() // before the token is used up, so that an answer can be given once it is
	again, err := j.a.tokens.Redeem(ctx, tokenID, secret, by)
	if err != nil {
		return self, err
	}
	if again {
		if _, err := store.AddPeerAgain(ctx, j.a.direct, by, info); err != nil {
			return self, err
		}
		return self, j.a.trust.admit(by, info)
	}
	_, err = j.a.addPeer(ctx, by, info, "")
	return self, err
}

// Introduce implements server.Trust.
func (j joining) Introduce(ctx context.Context, i server.Introduction) (wire.ClusterInfo, [32]byte, error) {
	nonce, err := j.introductions.Introduce(ctx, i.ID, i.From, i.Info, i.Commitment)
	return j.a.self(), nonce, err
}

// Reveal implements server.Trust.
func (j joining) Reveal(ctx context.Context, id peering.ClusterID, nonce [32]byte) error {
	return j.introductions.Reveal(ctx, id, nonce)
}

// UpdateBundle implements server.Trust.
func (j joining) UpdateBundle(ctx context.Context, id peering.ClusterID, info wire.ClusterInfo) error {
	return store.UpdateBundle(ctx, j.a.direct, id, info)
}

// Revoked implements server.Trust.
func (j joining) Revoked(ctx context.Context, id peering.ClusterID, message string) error {
	fc, err := store.MarkRevoked(ctx, j.a.direct, id, message, time.Now())
	if err != nil || fc == nil {
		return err
	}
	j.a.events.Eventf(fc, nil, corev1.EventTypeWarning, "Revoked", "Trust", "the peer ended its trust in this cluster: %s", message)
	j.a.wakePeer(id)
	return nil
}

// addPeer records trust and lets the peer's session in at once: it will be
// dialling while the reconciler still sleeps.
func (a *agent) addPeer(ctx context.Context, id peering.ClusterID, info wire.ClusterInfo, wanted string) (string, error) {
	name, err := store.AddPeer(ctx, a.direct, id, info, wanted)
	if err != nil {
		return "", err
	}
	return name, a.trust.admit(id, info)
}

// join redeems a token at the cluster that made it.
func (a *agent) join(ctx context.Context, token peering.Token, name string) (string, error) {
	info, err := strangers{a}.Join(ctx, token)
	if err != nil {
		return "", err
	}
	return a.addPeer(ctx, token.Issuer, info, name)
}

// introduce introduces this cluster at an endpoint and keeps who answers, for an
// administrator to decide, or with approve decides at once: then id says who has
// to answer.
func (a *agent) introduce(ctx context.Context, endpoint string, id peering.ClusterID, name string, approve bool) (string, error) {
	if approve && id == "" {
		return "", wire.Errorf(wire.ReasonRequestInvalid, "say which cluster is approved, by its ID")
	}
	met, err := client.Introduce(ctx, client.IntroduceConfig{Endpoint: endpoint, ID: id, Source: a.source, Self: a.self()})
	if err != nil {
		return "", err
	}
	return store.Introduce(ctx, a.direct, store.Introduction{
		ID: met.ID, Info: met.Info, Code: met.Code, Time: time.Now(), Endpoint: endpoint, Name: name, Approve: approve,
	})
}

// strangers calls clusters that need not trust this one. It implements
// controller.Strangers.
type strangers struct{ a *agent }

// Join implements controller.Strangers.
func (s strangers) Join(ctx context.Context, token peering.Token) (wire.ClusterInfo, error) {
	return client.Join(ctx, client.JoinConfig{Token: token, Source: s.a.source, Self: s.a.self()})
}

// Introduce implements controller.Strangers.
func (s strangers) Introduce(ctx context.Context, endpoint string, id peering.ClusterID) (wire.ClusterInfo, string, error) {
	met, err := client.Introduce(ctx, client.IntroduceConfig{Endpoint: endpoint, ID: id, Source: s.a.source, Self: s.a.self()})
	return met.Info, met.Code, err
}

// UpdateBundle implements controller.Strangers.
func (s strangers) UpdateBundle(ctx context.Context, id peering.ClusterID) error {
	return client.UpdateBundle(ctx, s.a.sessions.Conn(id), s.a.self())
}

// trust makes bundles and sessions fit the ForeignClusters. It implements
// controller.Trust.
type trust struct {
	self    peering.ClusterID
	bundles *identity.Bundles
	// sessions is there once the agent is built.
	sessions *session.Manager

	mu     sync.Mutex
	denied map[peering.ClusterID]bool
}

// Set implements controller.Trust.
func (t *trust) Set(peers []controller.TrustedPeer, denied []peering.ClusterID) {
	t.mu.Lock()
	t.denied = make(map[peering.ClusterID]bool, len(denied))
	for _, id := range denied {
		t.denied[id] = true
	}
	t.mu.Unlock()
	wanted := map[peering.ClusterID]bool{}
	var dial []session.Peer
	for _, p := range peers {
		if p.ID == t.self {
			continue
		}
		bundle, err := identity.ReadBundlePEM(p.ID, []byte(p.Bundle))
		if err != nil || t.bundles.Trust(p.ID, bundle) != nil {
			continue // its conditions say so
		}
		wanted[p.ID] = true
		dial = append(dial, session.Peer{ID: p.ID, Endpoints: p.Endpoints})
	}
	for _, id := range t.bundles.IDs() {
		if !wanted[id] {
			t.bundles.Remove(id) // which cuts its sessions
		}
	}
	t.sessions.SetPeers(dial)
}

// admit trusts a cluster before its ForeignCluster was looked at.
func (t *trust) admit(id peering.ClusterID, info wire.ClusterInfo) error {
	t.mu.Lock()
	delete(t.denied, id)
	t.mu.Unlock()
	return t.bundles.Trust(id, info.Bundle())
}

// isDenied says whether an administrator denied a cluster.
func (t *trust) isDenied(id peering.ClusterID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.denied[id]
}

// Session implements controller.Trust.
func (t *trust) Session(id peering.ClusterID) controller.Session {
	status := t.sessions.Status(id)
	if s := status.Session; s != nil {
		return controller.Session{Up: &controller.SessionInfo{
			Dialled: s.Dialled, Endpoint: s.Endpoint, Since: s.Since,
			RoundTrip: s.RoundTrip, ClockSkew: s.ClockSkew, NotAfter: s.PeerNotAfter,
		}}
	}
	out := controller.Session{
		Why: "no session with the peer's agent yet: it has no endpoint that could be dialled, or has not dialled", At: status.ErrAt,
	}
	if status.Err != nil {
		out.Why = fmt.Sprintf("no session with the peer's agent: %v", status.Err)
	}
	// What the last try was told, not one before it.
	if refused, ok := errors.AsType[*session.RefusedError](status.Err); ok {
		out.Denied, out.Untrusted = refused.Denied(), refused.Untrusted()
	}
	return out
}

// Revoke implements controller.Trust.
func (t *trust) Revoke(ctx context.Context, id peering.ClusterID, message string) error {
	return client.Revoke(ctx, t.sessions.Conn(id), message)
}

// watchSessions has peers looked at whose session came, went, or was refused for
// another reason than before.
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
				now = fmt.Sprint("up ", s.Up.Since.UnixNano(), s.Up.NotAfter.Unix())
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
			// The identity may have another key, of which peers are told.
			for id := range seen {
				a.wakeTrust(id)
			}
		}
	}
}

// wakeTrust has a peer, and the trust in it, looked at again.
func (a *agent) wakeTrust(id peering.ClusterID) {
	if fc := a.addresses.peer(id); fc != nil {
		a.peersWake.wake(foreignClusterNamed(fc.Name))
		a.trustWake.wake(foreignClusterNamed(fc.Name))
	}
}

// trusts builds what makes trust of what ForeignClusters say.
func (a *agent) trusts() *controller.Trusts {
	return &controller.Trusts{
		Client: a.mgr.GetClient(), Direct: a.direct, Namespace: a.cfg.Namespace, Self: a.source.ID(),
		OwnHash:   func() peering.Hash { return wire.BundleHash(a.source.Identity().TrustBundle()) },
		Strangers: strangers{a}, Session: a.trust.Session, Wake: a.trustWake,
		Said: func(name string) { a.peersWake.wake(foreignClusterNamed(name)) },
		Now:  time.Now,
	}
}
