package trust

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/introduce"
)

// Introductions takes the introductions of other clusters. Between the two messages of an
// introduction its numbers are in memory only; then what the cluster sent is in its
// ForeignCluster, with the code to compare. An introduction counts as a wrong guess at the code from its first message
// until the second was right: the caller can compute the code in between, and nobody here sees it.
type Introductions struct {
	// Client reads and writes ForeignClusters at the API server itself.
	Client client.Client
	// Cache reads them from a cache, so that calls of strangers cost the API server nothing.
	Cache client.Reader
	// Forgotten are the clusters that were trusted here and then forgotten.
	Forgotten *store.Forgotten
	Self      peering.ClusterID
	// Rand is the source of random numbers.
	Rand io.Reader
	Now  func() time.Time

	mu      sync.Mutex
	pending map[peering.ClusterID]*introduction
	// guessed counts the introductions that were begun and not completed.
	guessed guesses
}

// introduction is what is kept in memory of an introduction.
type introduction struct {
	info       identity.ClusterInfo
	commitment peering.Hash
	nonce      [32]byte
	from       string
	at         time.Time
	// requested means that an administrator of the cluster asked for it.
	requested bool
	// revealed means that the commitment was opened, or no longer has to be.
	revealed bool
	// counts means that it takes one of the places of clusters without a decision.
	counts bool
	// guess is how it is counted until it is completed.
	guess []paced
	limit *rate.Limiter
}

// Introduce keeps the ClusterInfo of a cluster until it opens its commitment, and returns this
// side's number. from is the key of its address in limits. requested means that an administrator
// there asked for the introduction; otherwise that cluster made it because it trusts this one.
// Errors have the reasons TRUST_DENIED, TRUST_FORGOTTEN and INTRODUCTIONS_PENDING.
func (r *Introductions) Introduce(ctx context.Context, id peering.ClusterID, from string, info identity.ClusterInfo, commitment peering.Hash, requested bool) (nonce [32]byte, err error) {
	var list v1alpha1.ForeignClusterList
	if err := r.Cache.List(ctx, &list, client.UnsafeDisableDeepCopy); err != nil { // they are only read
		return nonce, fmt.Errorf("list foreign clusters: %w", err)
	}
	fc := store.Known(list.Items, id)
	if fc != nil && fc.Spec.Decision == v1alpha1.DecisionDenied {
		return nonce, denied()
	}
	// One that introduced itself since, as an administrator there asked for it, may do it again.
	named := fc != nil && fc.DeletionTimestamp.IsZero() && (!store.Pending(fc) || fc.Status.Introduction != nil)
	if !named && !requested {
		if _, forgot, err := r.Forgotten.Since(ctx, id); err != nil || forgot {
			return nonce, cmp.Or(err, forgottenHere())
		}
	}
	if _, err := io.ReadFull(r.Rand, nonce[:]); err != nil {
		return nonce, fmt.Errorf("read randomness: %w", err)
	}
	listed, err := r.listed(ctx, id)
	if err != nil {
		return nonce, err
	}
	if err := r.admit(list.Items, fc, listed, &introduction{info: info, commitment: commitment, nonce: nonce, from: from, requested: requested}, id); err != nil {
		return nonce, err
	}
	if fc != nil && fc.Spec.Decision == v1alpha1.DecisionApproved && fc.Spec.TrustBundle == "" {
		// It is named here already, and proved to be that cluster.
		i := store.Introduction{ID: id, Info: info, Time: r.Now(), MayCreate: forgottenHere}
		if _, err := store.Introduce(ctx, r.Client, i); err != nil {
			return nonce, err
		}
	}
	return nonce, nil
}

func denied() error {
	return peering.Errorf(peering.ReasonTrustDenied, "an administrator of the cluster that was called denied yours: join with a token, or have it approved there")
}

func forgottenHere() error {
	return peering.Errorf(peering.ReasonTrustForgotten, "an administrator of this cluster forgot yours, or its policy that peered with yours ended; that is over with a new token of either side, when an administrator joins the two again, or when a policy here peers with yours")
}

// listed reports whether an automatic policy lists the ID of a cluster.
func (r *Introductions) listed(ctx context.Context, id peering.ClusterID) (bool, error) {
	var policies v1alpha1.PeeringPolicyList
	if err := r.Cache.List(ctx, &policies, client.UnsafeDisableDeepCopy); err != nil { // they are only read
		return false, fmt.Errorf("list peering policies: %w", err)
	}
	return slices.ContainsFunc(policies.Items, func(p v1alpha1.PeeringPolicy) bool {
		return p.Spec.Automatic != nil && slices.Contains(p.Spec.Automatic.ClusterIDs, string(id))
	}), nil
}

// admit keeps an introduction, in place of an older one of the same cluster. listed means that a
// policy lists its ID.
func (r *Introductions) admit(all []v1alpha1.ForeignCluster, fc *v1alpha1.ForeignCluster, listed bool, i *introduction, id peering.ClusterID) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.pending == nil {
		r.pending = map[peering.ClusterID]*introduction{}
	}
	i.at = r.Now()
	waiting := r.waiting(all, i.at)
	old := r.pending[id]
	// A cluster that an administrator here named, or a policy lists, takes no place.
	i.counts = !listed && (fc == nil || store.Pending(fc))
	if i.counts && !waiting[id] {
		sameAddress := 0
		for _, other := range r.pending {
			if other.counts && other.from == i.from {
				sameAddress++
			}
		}
		if len(waiting) >= MaxIntroductions || sameAddress >= MaxIntroductionsPerAddress {
			e := peering.Errorf(peering.ReasonIntroductionsPending, "%d clusters wait for an administrator of this cluster, %d of them from your address: that is the limit", len(waiting), sameAddress)
			e.RetryAfter = introductionsPause
			return e
		}
	}
	if old != nil {
		i.limit = old.limit
	} else {
		i.limit = rate.NewLimiter(rate.Every(IntroductionPause), IntroductionBurst)
	}
	res := i.limit.ReserveN(i.at, 1)
	if res.DelayFrom(i.at) > 0 {
		e := peering.Errorf(peering.ReasonIntroductionsPending, "your cluster introduces itself too often")
		e.RetryAfter = max(res.DelayFrom(i.at), time.Second)
		res.CancelAt(i.at)
		return e
	}
	if i.counts {
		// Counted before the cluster gets this side's number, with which it can compute the code.
		i.guess = guessAtCode(i.from)
		if wait := r.guessed.add(i.at, i.guess...); wait > 0 {
			res.CancelAt(i.at)
			e := peering.Errorf(peering.ReasonIntroductionsPending, "too many introductions were begun lately and not completed: wait, or join with a token")
			e.RetryAfter = wait
			return e
		}
	}
	r.pending[id] = i
	return nil
}

// guessAtCode returns the keys under which an introduction is counted as a guess at the code: its address, the
// network of that, and all.
func guessAtCode(from string) []paced {
	return []paced{
		{"all", pace{CodeBurst, CodePause}},
		{"network " + networkKey(from), pace{CodeBurstPerNetwork, CodePausePerNetwork}},
		{"address " + from, pace{CodeBurstPerAddress, CodePausePerAddress}},
	}
}

// networkKey returns the network of the key of an address in limits: the /24 of an IPv4 address, the /48 of
// an IPv6 prefix, or what is neither.
func networkKey(from string) string {
	p, err := netip.ParsePrefix(from)
	if err != nil {
		a, err := netip.ParseAddr(from)
		if err != nil {
			return from
		}
		p = netip.PrefixFrom(a, a.BitLen())
	}
	bits := 48
	if p.Addr().Is4() {
		bits = 24
	}
	return netip.PrefixFrom(p.Addr(), bits).Masked().String()
}

// waiting removes what expired and returns the clusters without a decision. The caller holds the
// lock.
func (r *Introductions) waiting(all []v1alpha1.ForeignCluster, now time.Time) map[peering.ClusterID]bool {
	out := map[peering.ClusterID]bool{}
	for i := range all {
		if store.Pending(&all[i]) && !all[i].Hint() {
			out[peering.ClusterID(all[i].Spec.ClusterID)] = true
		}
	}
	for id, i := range r.pending {
		// One that was opened is in a ForeignCluster, which a cache may not show yet.
		if now.Sub(i.at) >= RevealTimeout && (!i.revealed || !out[id] || now.Sub(i.at) >= IntroductionLife) {
			delete(r.pending, id)
			continue
		}
		if i.counts {
			out[id] = true
		}
	}
	return out
}

// Reveal opens the commitment of a cluster's introduction, and shows the code.
// Errors have the reasons TRUST_DENIED, TRUST_FORGOTTEN, INTRODUCTION_UNKNOWN and
// COMMITMENT_MISMATCH.
func (r *Introductions) Reveal(ctx context.Context, id peering.ClusterID, nonce [32]byte) error {
	now := r.Now()
	i, err := r.open(id, nonce, now)
	if err != nil {
		return err
	}
	if err := r.checkForgotten(ctx, id, i); err != nil {
		return err
	}
	_, err = store.Introduce(ctx, r.Client, store.Introduction{
		ID: id, Info: i.info, Code: introduce.Code(id, nonce, r.Self, i.nonce), Time: now,
		// It may have been forgotten since the ForeignCluster was read.
		MayCreate: func() error { return r.checkForgotten(ctx, id, i) },
	})
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		i.revealed = false // it can be opened again: nothing was written
		return err
	}
	r.guessed.takeBack(now, i.guess...)
	i.nonce, i.commitment, i.info = [32]byte{}, peering.Hash{}, identity.ClusterInfo{}
	return nil
}

// checkForgotten refuses an introduction of a cluster that was forgotten here since it began.
// A cluster that an administrator forgot stays forgotten until an administrator here decides:
// only the other side claims that an administrator asked, and a policy would trust it for that.
func (r *Introductions) checkForgotten(ctx context.Context, id peering.ClusterID, i *introduction) error {
	at, forgot, err := r.Forgotten.Since(ctx, id)
	person, err2 := r.Forgotten.ByPerson(ctx, id)
	switch {
	case err != nil || err2 != nil:
		return errors.Join(err, err2)
	case forgot && !at.Before(i.at):
		return forgottenHere()
	case forgot && i.requested && !person:
		return r.Forgotten.Remove(ctx, id)
	}
	return nil
}

// open checks a number against the commitment. There is one try.
func (r *Introductions) open(id peering.ClusterID, nonce [32]byte, now time.Time) (*introduction, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	i := r.pending[id]
	if i == nil || i.revealed || now.Sub(i.at) >= RevealTimeout {
		return nil, peering.Errorf(peering.ReasonIntroductionUnknown, "there is no introduction of your cluster: it expired, or this agent was restarted; introduce it again")
	}
	i.revealed = true
	if introduce.Commitment(id, nonce) != i.commitment {
		return nil, peering.Errorf(peering.ReasonCommitmentMismatch, "the number is not the one that was committed to; introduce your cluster again")
	}
	return i, nil
}
