package provider

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/market"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// Provider answers peers' requests for resources of this cluster. It reserves what it
// advertised until that is signed or lapses, so that many requests at once never
// get more than there is. Advertisements live in memory only: after a restart a consumer
// asks again.
type Provider struct {
	// Client reads from a cache, and writes.
	Client client.Client
	// Reader reads from the API server itself.
	Reader client.Reader
	// Identity is this cluster's identity as it is now.
	Identity func() *identity.Identity
	Now      func() time.Time
	// Changed is called when a contract with a peer was made or revised, and when this
	// cluster begins or ceases to offer the peer anything.
	Changed func(peer peering.ClusterID)
	// Informers report changes of what can be offered. Without them each answer reads
	// everything again, and watched offers are not updated.
	Informers cache.Informers
	// Namespace is the agent's own, whose Services are never exported.
	Namespace string
	// ServiceExports returns which Services are exported to cluster sets; nil means never any.
	ServiceExports func(context.Context) ([]peering.ServiceName, error)
	// Budget bounds what peers have written here: a contract is an object that each
	// revision replaces whole. Required.
	Budget *store.WriteBudget
	// Events takes which requests wait for an administrator; nil records nothing.
	Events events.EventRecorder
	Log    *slog.Logger

	mu         sync.Mutex
	advertised map[requestKey]*advertised
	signing    map[string]chan struct{}
	// recent is the contracts that were signed and that the cache may not show yet.
	recent map[string]recentContract
	// changed is closed when offers may have changed.
	changed chan struct{}
	// asked is when each pending request was last repeated, and recorded when a
	// peer's pending requests last changed.
	asked    map[string]time.Time
	recorded map[peering.ClusterID]time.Time
	// snapshot is what decisions are based on. wake makes Run read it again.
	snapshot snapshot
	wake     notify.Channel
	// read is the policies as last read. It has a lock of its own.
	read policiesRead

	// following says that informers report changes: supplyStale that nodes or pods
	// changed, stale that anything else did.
	following, supplyStale, stale atomic.Bool
	// exporting says that a policy exports Services, so that changes of Services matter.
	exporting atomic.Bool

	// offerings is what Offering returns, by peer. unknown wakes Run when Offering was called
	// for a peer that is not in it.
	offeringsMu sync.Mutex
	offerings   map[peering.ClusterID]peering.Offering
	unknown     notify.Channel
}

type requestKey struct {
	peer    peering.ClusterID
	request string
}

// advertised is what was advertised for a request, and can be signed.
type advertised struct {
	ad  peering.Advertisement
	ask peering.Ask
	// tolerations is what its pods tolerate. It is not part of the advertisement.
	tolerations []corev1.Toleration
	// trust is the UID of the ForeignCluster by which the peer was trusted.
	trust types.UID
	// signing says that a contract is being made of it. It does not lapse meanwhile.
	signing bool
}

type recentContract struct {
	contract *v1alpha1.Contract
	at       time.Time
}

// Advertise responds to a request by this cluster's policy and free capacity. The
// same request gets the same response while that is valid.
func (p *Provider) Advertise(ctx context.Context, peer peering.ClusterID, ask peering.Ask) (peering.Advertisement, error) {
	ad, pending, err := p.advertise(ctx, peer, ask)
	if pending != nil {
		if err := p.record(ctx, peer, ask.RequestID, *pending); err != nil {
			return peering.Advertisement{}, err
		}
	}
	return ad, err
}

func (p *Provider) advertise(ctx context.Context, peer peering.ClusterID, ask peering.Ask) (peering.Advertisement, *v1alpha1.PendingRequest, error) {
	joined, err := p.joined(ctx, peer)
	if err != nil {
		return peering.Advertisement{}, nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m, err := p.marketFor(ctx, peer, joined)
	if err != nil {
		return peering.Advertisement{}, nil, err
	}
	key := requestKey{peer, ask.RequestID}
	if o, ok := p.advertised[key]; ok {
		if o.signing || reflect.DeepEqual(o.ask, ask) {
			return o.ad, nil, nil
		}
		// Another ask under the same ID: what was reserved for the previous one is
		// free for this one.
		delete(p.advertised, key)
		p.invalidate()
		if m, err = p.marketFor(ctx, peer, joined); err != nil {
			return peering.Advertisement{}, nil, err
		}
	}
	if ask.ContractID == "" {
		if c := p.snapshot.contractOf(peer, ask.RequestID); c != nil {
			ad, err := p.readvertise(c)
			return ad, nil, err
		}
		if n := p.snapshot.contractsWith(peer); n >= MaxContractsPerPeer {
			return peering.Advertisement{}, nil, peering.Errorf(peering.ReasonCapacityExhausted, "limit of %d contracts with this peer reached", n)
		}
	}
	d, err := p.decide(m, peer, ask, false)
	if err != nil {
		return peering.Advertisement{}, d.pending, err
	}
	if p.advertisedTo(peer) >= MaxAdvertisedPerPeer || len(p.advertised) >= MaxAdvertised {
		return peering.Advertisement{}, nil, peering.Errorf(peering.ReasonCapacityExhausted, "too many advertisements are unsigned; sign or let them lapse, which takes %s", AdvertisedFor)
	}
	if d.ad.ContractID == "" {
		d.ad.ContractID = newContractID()
	}
	if p.advertised == nil {
		p.advertised = map[requestKey]*advertised{}
	}
	p.advertised[key] = &advertised{ad: d.ad, ask: ask, tolerations: d.tolerations, trust: m.Peers[peer].UID}
	p.invalidate()
	return d.ad, nil, nil
}

// Preview returns what Advertise would, and reserves nothing.
func (p *Provider) Preview(ctx context.Context, peer peering.ClusterID, ask peering.Ask) (peering.Advertisement, error) {
	joined, err := p.joined(ctx, peer)
	if err != nil {
		return peering.Advertisement{}, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	m, err := p.marketFor(ctx, peer, joined)
	if err != nil {
		return peering.Advertisement{}, err
	}
	d, err := p.decide(m, peer, ask, false)
	if refused, ok := errors.AsType[*peering.Error](err); ok {
		if ad := p.onceApproved(m, peer, ask, refused); ad != nil {
			return *ad, nil
		}
	}
	if err != nil {
		return peering.Advertisement{}, err
	}
	d.ad.ContractID = ""
	return d.ad, nil
}

// decision is the response to an ask.
type decision struct {
	ad peering.Advertisement
	// policy is the PeeringPolicy that decided; empty if no policy selects the peer.
	policy string
	// pending is the request that an administrator has to approve; nil if no approval
	// is needed.
	pending *v1alpha1.PendingRequest
	// tolerations is what the contract's pods will tolerate.
	tolerations []corev1.Toleration
}

// decide decides on an ask. The advertisement has a contract ID only for a revision. approved
// decides as if an administrator had approved the ask. p.mu must be held.
func (p *Provider) decide(m *market.Market, peer peering.ClusterID, ask peering.Ask, approved bool) (decision, error) {
	var old *revision
	if ask.ContractID != "" {
		var err error
		if old, err = p.revising(peer, ask); err != nil {
			return decision{}, err
		}
		ask.Resources = ask.Resources.KeepUnnamed(old.terms.Resources)
	}
	now := p.Now().UTC()
	d := decision{ad: peering.Advertisement{
		RequestID: ask.RequestID, Revision: 1, ValidUntil: now.Truncate(time.Second).Add(AdvertisedFor),
	}}
	fc, selected, err := m.PolicyOf(peer)
	asked := ask // without the labels of a pool
	var policy peering.Policy
	if err == nil {
		d.policy = selected.Value.Name
		ask, policy, err = selected.In(ask)
	}
	policy.Approved = approved
	if err == nil && !approved && policy.Accept == peering.AfterApproval {
		var granted *peering.Ask
		if old != nil {
			granted = &peering.Ask{
				Resources: old.terms.Resources, Pool: old.terms.Pool, NodeSelector: old.terms.NodeSelector, Network: old.terms.Network,
				RuntimeClasses: old.terms.RuntimeClasses, StorageClasses: old.storageClasses,
			}
		}
		policy.Approved, d.pending, err = approval(fc, ask, granted)
	}
	if old == nil {
		if err != nil {
			return d, err
		}
		d.ad.Grant, err = m.Decide(peer, ask, policy, "")
		d.tolerations = selected.Tolerations(nil, d.ad.NodeSelector)
		return d.unlessPending(err), err
	}
	d.ad.ContractID, d.ad.Revision, d.ad.PreviousHash = old.terms.ContractID, old.terms.Revision+1, old.contract.Hash
	if err == nil {
		d.ad.Grant, d.ad.NotAfter, err = m.Amend(peer, ask, policy, old.terms, now)
		d.tolerations = selected.Tolerations(old.kept(d.ad), d.ad.NodeSelector)
	}
	if err != nil {
		// Giving back is always possible, if need be on the terms in force.
		less, ok := market.Lessened(old.terms, asked, now)
		if !ok || peering.ReasonOf(err) == peering.ReasonRequestInvalid || peering.ReasonOf(err) == peering.ReasonPriceAboveCeiling {
			return d.unlessPending(err), err
		}
		d.ad.Grant, d.ad.NotAfter, d.tolerations = less, old.terms.NotAfter, old.tolerations
	}
	d.pending = nil
	// A period that changed midway would end at two times for the two sides, and running pods
	// would count differently from equal pods at home.
	d.ad.StatementPeriod, d.ad.LimitRange = old.terms.StatementPeriod, old.terms.LimitRange
	return d, nil
}

// unlessPending returns the decision without its pending request, unless err says that
// the request waits for approval.
func (d decision) unlessPending(err error) decision {
	if peering.ReasonOf(err) != peering.ReasonPolicyPending {
		d.pending = nil
	}
	return d
}

// revision is a contract to be revised.
type revision struct {
	contract peering.Contract
	terms    peering.Terms
	// storageClasses is those that it was granted with, and tolerations what its pods tolerate. Neither
	// is part of the terms.
	storageClasses []string
	tolerations    []corev1.Toleration
}

// kept returns the tolerations that a contract's next revision keeps, whatever the policy says now: those it
// has, if its nodes stay the same. A renewal keeps none: it is on today's terms.
func (r *revision) kept(next peering.Advertisement) []corev1.Toleration {
	if next.NotAfter.IsZero() || !maps.Equal(next.NodeSelector, r.terms.NodeSelector) {
		return nil
	}
	return r.tolerations
}

// revising returns the contract that an ask revises. p.mu must be held.
func (p *Provider) revising(peer peering.ClusterID, ask peering.Ask) (*revision, error) {
	c := p.snapshot.contracts[ask.ContractID]
	if c == nil || c.Spec.PeerID != string(peer) || c.Spec.Role != v1alpha1.ContractProvider {
		return nil, peering.Errorf(peering.ReasonContractUnknown, "this cluster grants the caller nothing by contract %s", ask.ContractID)
	}
	contract, terms, err := store.ReadContract(c, p.Identity().ID())
	if err != nil {
		return nil, err
	}
	if contract, err = contract.Apply(peering.Tick{Now: p.Now()}); err != nil {
		return nil, err
	}
	if !store.AcceptsNew(c, contract) || terms.NotAfter.Sub(p.Now()) < time.Second {
		return nil, peering.Errorf(peering.ReasonContractClosed, "contract %s is over or is ending: ask for another", ask.ContractID)
	}
	if terms.RequestID != ask.RequestID {
		return nil, peering.Errorf(peering.ReasonRequestInvalid, "contract %s is of request %s, not %s", ask.ContractID, terms.RequestID, ask.RequestID)
	}
	if terms.Revision >= peering.MaxRevision {
		return nil, peering.Errorf(peering.ReasonContractClosed, "contract %s has reached the limit of %d revisions: ask for another contract", ask.ContractID, peering.MaxRevision)
	}
	return &revision{contract, terms, store.StorageClasses(c), store.Tolerations(c)}, nil
}

// readvertise repeats the advertisement of a contract that is in force: its consumer
// lost the response. Signing it returns the contract as it is.
func (p *Provider) readvertise(c *v1alpha1.Contract) (peering.Advertisement, error) {
	_, terms, err := store.ReadContract(c, p.Identity().ID())
	if err != nil {
		return peering.Advertisement{}, err
	}
	return peering.Advertisement{
		ContractID: terms.ContractID, RequestID: terms.RequestID, Revision: terms.Revision, PreviousHash: terms.Previous,
		Grant: peering.Grant{Clauses: terms.Clauses, Duration: terms.NotAfter.Sub(terms.NotBefore)}, ValidUntil: p.Now().UTC().Truncate(time.Second).Add(AdvertisedFor),
	}, nil
}

// lapse drops advertisements that lapsed. p.mu must be held.
func (p *Provider) lapse() {
	now, n := p.Now(), len(p.advertised)
	maps.DeleteFunc(p.advertised, func(_ requestKey, o *advertised) bool { return !o.signing && !now.Before(o.ad.ValidUntil) })
	if len(p.advertised) != n {
		p.invalidate()
	}
}

func (p *Provider) advertisedTo(peer peering.ClusterID) int {
	n := 0
	for key := range p.advertised {
		if key.peer == peer {
			n++
		}
	}
	return n
}

// Sign countersigns what a consumer signed, if it is what was advertised to it:
// a new contract, or the next revision of one. Repeating it returns what was
// signed.
func (p *Provider) Sign(ctx context.Context, peer peering.ClusterID, envelope peering.Envelope) (peering.Envelope, error) {
	terms, err := envelope.VerifyConsumer()
	if err != nil {
		return peering.Envelope{}, &peering.Error{Reason: peering.ReasonSignatureInvalid, Message: err.Error(), Err: err}
	}
	self := p.Identity()
	if terms.Consumer.ID != peer || terms.Provider.ID != self.ID() {
		return peering.Envelope{}, peering.Errorf(peering.ReasonSignatureInvalid, "the contract is between %s and %s, and the caller is %s", terms.Consumer.ID, terms.Provider.ID, peer)
	}
	release, err := p.claim(ctx, terms.ContractID)
	if err != nil {
		return peering.Envelope{}, err
	}
	defer release()
	// A first revision whose advertisement is still there was not signed before, unless
	// the response to the call that signed it was lost.
	readStored := terms.Revision > 1
	for {
		signed, err := p.countersign(ctx, self, envelope, terms, readStored)
		if (apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err)) && ctx.Err() == nil {
			readStored = true
			continue // the contract was written meanwhile; read it again
		}
		return signed, err
	}
}

// claim waits until no other call signs the contract.
func (p *Provider) claim(ctx context.Context, contract string) (release func(), err error) {
	for {
		p.mu.Lock()
		busy, ok := p.signing[contract]
		if !ok {
			done := make(chan struct{})
			if p.signing == nil {
				p.signing = map[string]chan struct{}{}
			}
			p.signing[contract] = done
			p.mu.Unlock()
			return func() {
				p.mu.Lock()
				delete(p.signing, contract)
				p.mu.Unlock()
				close(done)
			}, nil
		}
		p.mu.Unlock()
		select {
		case <-busy:
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// countersign signs and stores a contract, or returns it if it is signed already. Without readStored it
// assumes that a contract with an advertisement is not stored yet.
func (p *Provider) countersign(ctx context.Context, self *identity.Identity, envelope peering.Envelope, terms peering.Terms, readStored bool) (peering.Envelope, error) {
	peer := terms.Consumer.ID
	o, done, lapsed := p.beginSigning(terms)
	if lapsed == nil {
		defer done()
	}
	var stored *v1alpha1.Contract
	var before peering.Contract
	if readStored || lapsed != nil {
		var err error
		if stored, before, err = p.agreedBefore(ctx, terms); err != nil {
			return peering.Envelope{}, err
		}
		if stored != nil && before.Revision == terms.Revision {
			// It may be another payload of this revision, whose response was lost. What
			// both signed is in force.
			return peering.ParseEnvelope([]byte(stored.Spec.Envelope))
		}
	}
	if lapsed != nil {
		return peering.Envelope{}, lapsed
	}
	if why := mismatch(o, terms, self, p.Now()); why != "" {
		return peering.Envelope{}, peering.Errorf(peering.ReasonContractMismatch, "the contract is not what was advertised: %s", why)
	}
	fc, err := p.trusted(ctx, peer, terms.Consumer)
	if err != nil {
		return peering.Envelope{}, err
	}
	if _, err := before.Apply(peering.Countersigned{Role: peering.Provider, Terms: terms, Hash: envelope.Hash(), Now: p.Now()}); err != nil {
		return peering.Envelope{}, err
	}
	signed, err := envelope.Sign(rand.Reader, self.ID(), self.Signer())
	if err != nil {
		return peering.Envelope{}, fmt.Errorf("sign contract %s: %w", terms.ContractID, err)
	}
	contract, err := p.write(ctx, fc, stored, signed, o)
	if err != nil {
		return peering.Envelope{}, err
	}
	p.signed(peer, contract)
	p.dropFulfilled(ctx, fc, terms, o.ad.StorageClasses)
	p.Changed(peer)
	return signed, nil
}

// write stores what both signed: a new contract, or the next revision of one that is
// stored.
func (p *Provider) write(ctx context.Context, fc *v1alpha1.ForeignCluster, stored *v1alpha1.Contract, signed peering.Envelope, o *advertised) (*v1alpha1.Contract, error) {
	self, contract := p.Identity().ID(), stored
	var err error
	if stored == nil {
		contract, err = store.NewContract(signed, self, fc.Name)
	} else {
		err = store.Revise(contract, signed, self)
	}
	if err != nil {
		return nil, fmt.Errorf("read signed contract: %w", err)
	}
	store.SetStorageClasses(contract, o.ad.StorageClasses)
	setApproval(contract, fc)
	if err := store.SetTolerations(contract, o.tolerations); err != nil {
		return nil, err
	}
	err = p.Budget.Take(peering.ClusterID(fc.Spec.ClusterID), contract)
	if wait, over := store.Later(err); over {
		return nil, &peering.Error{
			Reason: peering.ReasonRateLimited, RetryAfter: wait,
			Message: "the provider wrote too many contracts and revisions of this consumer lately: sign it again later", Err: err,
		}
	}
	switch {
	case err != nil:
	case stored == nil:
		err = p.Client.Create(ctx, contract, client.FieldOwner(v1alpha1.Manager))
	default:
		err = p.Client.Update(ctx, contract, client.FieldOwner(v1alpha1.Manager))
	}
	if err != nil {
		return nil, fmt.Errorf("store contract %s: %w", contract.Name, err)
	}
	if stored != nil && p.Events != nil {
		p.Events.Eventf(contract, nil, corev1.EventTypeNormal, "Amended", "Sign", "%s", store.RevisionText(contract))
	}
	return contract, nil
}

// beginSigning returns the advertisement that terms follow from, and keeps it from
// lapsing until done is called.
func (p *Provider) beginSigning(terms peering.Terms) (o *advertised, done func(), err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lapse()
	o = p.advertised[requestKey{terms.Consumer.ID, terms.RequestID}]
	if o == nil || o.ad.ContractID != terms.ContractID || o.ad.Revision != terms.Revision {
		return nil, nil, peering.Errorf(peering.ReasonAdvertisementExpired,
			"there is no advertisement of revision %d of contract %s: it lapsed, or this agent was restarted; ask again", terms.Revision, terms.ContractID)
	}
	o.signing = true
	return o, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		o.signing = false
	}, nil
}

// signed replaces an advertisement by its contract.
func (p *Provider) signed(peer peering.ClusterID, contract *v1alpha1.Contract) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.recent == nil {
		p.recent = map[string]recentContract{}
	}
	p.recent[contract.Name] = recentContract{contract: contract.DeepCopy(), at: p.Now()}
	delete(p.advertised, requestKey{peer, contract.Spec.RequestID})
	p.invalidate()
}

// trusted returns the ForeignCluster of the consumer after checking that it
// signed with a key that this cluster trusts, or with a later one. It reads the
// cache, and the API server if the cache lacks the peer or its key.
func (p *Provider) trusted(ctx context.Context, peer peering.ClusterID, consumer peering.Party) (*v1alpha1.ForeignCluster, error) {
	fc, err := store.Cached(ctx, p.Client, peer)
	if err == nil && fc != nil && signedByKnown(fc, consumer) == nil {
		return fc, nil
	}
	if fc, err = store.Find(ctx, p.Reader, peer); err != nil {
		return nil, err
	}
	if fc == nil {
		return nil, peering.Errorf(peering.ReasonPeerNotTrusted, "this cluster no longer knows cluster %s", peer)
	}
	return fc, signedByKnown(fc, consumer)
}

// signedByKnown returns an error unless the consumer's key is that of the trusted
// cluster.
func signedByKnown(fc *v1alpha1.ForeignCluster, consumer peering.Party) error {
	if !fc.DeletionTimestamp.IsZero() {
		return peering.Errorf(peering.ReasonPeerNotTrusted, "this cluster no longer knows cluster %s", fc.Spec.ClusterID)
	}
	bundle, err := identity.ReadBundlePEM(peering.ClusterID(fc.Spec.ClusterID), []byte(fc.Spec.TrustBundle))
	if err != nil {
		return fmt.Errorf("trust bundle of %s: %w", fc.Name, err)
	}
	known := bundle.Succession
	if len(consumer.Succession) < len(known) || !slices.EqualFunc(known, consumer.Succession[:len(known)], slices.Equal) {
		return peering.Errorf(peering.ReasonSignatureInvalid, "the consumer signed with a key that it has rolled over")
	}
	return nil
}

// agreedBefore returns the stored contract that terms are the next revision of, or that
// has these terms already; nil if no such contract is stored.
func (p *Provider) agreedBefore(ctx context.Context, terms peering.Terms) (*v1alpha1.Contract, peering.Contract, error) {
	c, none := &v1alpha1.Contract{}, peering.Contract{}
	if err := p.Reader.Get(ctx, client.ObjectKey{Name: terms.ContractID}, c); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, none, nil
		}
		return nil, none, fmt.Errorf("read contract %s: %w", terms.ContractID, err)
	}
	if c.Spec.PeerID != string(terms.Consumer.ID) || c.Spec.Role != v1alpha1.ContractProvider || c.Spec.RequestID != terms.RequestID {
		return nil, none, peering.Errorf(peering.ReasonContractMismatch, "contract %s is not the caller's, or of another request", c.Name)
	}
	contract, _, err := store.ReadContract(c, p.Identity().ID())
	switch {
	case err != nil:
		return nil, none, err
	case !store.AcceptsNew(c, contract):
		return nil, none, peering.Errorf(peering.ReasonContractClosed, "contract %s is over: ask for another", c.Name)
	case terms.Revision == contract.Revision:
	case terms.Revision != contract.Revision+1:
		return nil, none, peering.Errorf(peering.ReasonRevisionStale, "contract %s is at revision %d, and revision %d does not follow it", c.Name, contract.Revision, terms.Revision)
	case terms.Previous != contract.Hash:
		return nil, none, peering.Errorf(peering.ReasonContractMismatch, "revision %d does not follow revision %d of this cluster: its previous hash differs", terms.Revision, contract.Revision)
	}
	return c, contract, nil
}

// mismatch returns how a contract differs from what was advertised; empty if it does not.
func mismatch(o *advertised, terms peering.Terms, self *identity.Identity, now time.Time) string {
	ad, length := o.ad, terms.NotAfter.Sub(terms.NotBefore)
	switch differs := ad.Differs(terms.Clauses); {
	case differs != "":
		return differs
	case !terms.Provider.Equal(self.Party()):
		return "it names another key of the provider than its newest: wait for its bundle"
	case terms.Revision != ad.Revision || terms.Previous != ad.PreviousHash:
		return fmt.Sprintf("it is revision %d, or does not follow what revision %d has to", terms.Revision, ad.Revision)
	case length > ad.Duration:
		return fmt.Sprintf("it lasts %s, advertised %s", length, ad.Duration)
	case !ad.NotAfter.IsZero() && terms.NotAfter.After(ad.NotAfter):
		return fmt.Sprintf("it ends at %s, and may last until %s", terms.NotAfter.Format(time.RFC3339), ad.NotAfter.Format(time.RFC3339))
	case terms.NotBefore.Sub(now) > startAhead || now.Sub(terms.NotBefore) > market.StartSkew:
		return fmt.Sprintf("it begins at %s and it is %s here: check both clocks", terms.NotBefore.Format(time.RFC3339), now.UTC().Format(time.RFC3339))
	}
	return ""
}

// Granted returns a contract in which this cluster is the provider. It comes from the cache, or from
// the API server while the cache lacks a contract that was signed a moment ago: a consumer uses a
// contract as soon as it has the second signature. Callers must not change it.
func (p *Provider) Granted(id string) (*v1alpha1.Contract, bool) {
	ctx, cancel := context.WithTimeout(context.Background(), grantedTimeout) //nolint:forbidigo // a cache responds at once, and the API server soon
	defer cancel()
	var c v1alpha1.Contract
	err := p.Client.Get(ctx, client.ObjectKey{Name: id}, &c, client.UnsafeDisableDeepCopy)
	if apierrors.IsNotFound(err) && p.signedNow(id) {
		err = p.Reader.Get(ctx, client.ObjectKey{Name: id}, &c)
	}
	return &c, err == nil && c.Spec.Role == v1alpha1.ContractProvider
}

// signedNow reports whether a contract was signed so recently that the cache may lack it.
func (p *Provider) signedNow(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	r, ok := p.recent[id]
	return ok && p.Now().Sub(r.at) < cacheLag
}

// Permissions are what a policy allows a peer besides resources, in force at once.
type Permissions struct {
	// NamespaceNames is the names that its namespaces may have here, with a * at the end of some.
	NamespaceNames []string
	// MinFence is the shortest fence that it may ask for; longer than any allowed fence while the policy
	// is unknown.
	MinFence time.Duration
	// HomeAPI says that this cluster carries its pods' requests to the API server of their home.
	HomeAPI bool
	// NetworkPolicies says that its NetworkPolicies are applied here.
	NetworkPolicies bool
	// RuntimeClasses and PriorityClasses map the peer's classes to those of this cluster.
	RuntimeClasses  []v1alpha1.ClassMapping
	PriorityClasses []v1alpha1.PriorityMapping
	// Tolerations is what pods of the contract tolerate.
	Tolerations []corev1.Toleration
}

// Permissions returns what the policy that selects a peer allows it: nothing without such a policy. The
// tolerations are those of the policy for nodes with these labels, and those that the contract was signed with.
func (p *Provider) Permissions(ctx context.Context, peer peering.ClusterID, signed []corev1.Toleration, nodes map[string]string) Permissions {
	policy := p.policyOf(ctx, peer)
	if policy == nil {
		return Permissions{MinFence: peering.MaxFence + 1, Tolerations: signed}
	}
	allowed := Permissions{
		NamespaceNames: slices.Clone(policy.Spec.NamespaceNames), MinFence: peering.MinFence, HomeAPI: policy.Spec.HomeAPI == v1alpha1.HomeAPIAllowed,
		NetworkPolicies: policy.Spec.NetworkPolicies == v1alpha1.NetworkPoliciesAllowed,
		RuntimeClasses:  slices.Clone(policy.Spec.RuntimeClassMappings), PriorityClasses: slices.Clone(policy.Spec.PriorityClassMappings),
		Tolerations: policy.Tolerations(signed, nodes),
	}
	if policy.Spec.MinFence != nil {
		allowed.MinFence = policy.Spec.MinFence.Duration
	}
	return allowed
}

// policyOf returns the policy that selects a peer, nil if no policy does or it cannot be read: the peer
// is then allowed nothing.
func (p *Provider) policyOf(ctx context.Context, peer peering.ClusterID) *market.Policy {
	fc, err := store.Peek(ctx, p.Client, peer)
	if err != nil || fc == nil {
		return nil
	}
	all, err := p.policies(ctx)
	if err != nil {
		return nil
	}
	policy, err := market.Selecting(all, fc)
	if err != nil {
		return nil
	}
	return policy
}

// newContractID returns a unique name: 80 random bits.
func newContractID() string {
	var b [10]byte
	_, _ = rand.Read(b[:]) // never fails (crypto/rand)
	return "c-" + hex.EncodeToString(b[:])
}
