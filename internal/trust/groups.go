package trust

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/pake"
	"github.com/entente-dev/entente/internal/store"
	"github.com/entente-dev/entente/peering"
)

// Groups lets clusters that know the same secret of a group trust each other: it answers those
// that prove it, and proves it to others. A run is in memory only.
type Groups struct {
	// Self is this cluster.
	Self peering.ClusterID
	// Cache reads ForeignClusters from a cache, so that calls of strangers cost the API server
	// nothing.
	Cache client.Reader
	// Forgotten are the clusters that were trusted here and then forgotten.
	Forgotten *store.Forgotten
	// Secret returns the secret of a group, and the policy that names it, or GroupUnknown if no
	// policy does. It is called for each run, also for strangers. If nil, every group is unknown.
	Secret func(ctx context.Context, group string) (policy string, secret []byte, err error)
	// Admit trusts a cluster that proved a group's secret, in the name of the policy. It may be
	// called again for the same cluster.
	Admit func(ctx context.Context, id peering.ClusterID, info identity.ClusterInfo, policy, group string) error
	// Failed, if not nil, is called when a run with a cluster failed, at most GroupNewsBurst times
	// at once for each group that this cluster has. why is for people and has no secret in it.
	Failed func(group string, id peering.ClusterID, why string)
	// Begun, if not nil, is called when a cluster began a run of a group that this cluster has.
	Begun func(group string, id peering.ClusterID)
	// Call proves to the cluster with that ID, at an endpoint, that this one knows the secret, and
	// returns its ClusterInfo once it did the same.
	Call func(ctx context.Context, endpoint string, id peering.ClusterID, group string, secret []byte) (identity.ClusterInfo, error)
	Now  func() time.Time

	mu      sync.Mutex
	pending map[peering.ClusterID]*proof
	// answered and called count the runs of each direction that did not succeed, proven the
	// answered runs that did, news the calls of Failed.
	answered, called, proven, news guesses
}

// proof is what is kept of a run between its two calls. The secret is not.
type proof struct {
	channel       [identity.ChannelLen]byte
	info          identity.ClusterInfo
	policy, group string
	run           *pake.Responder
	at            time.Time
	counted       []paced
}

// GroupUnknown is the error that no policy of this cluster names a group.
func GroupUnknown(group string) error {
	return peering.Errorf(peering.ReasonGroupUnknown, "no policy of this cluster names group %s", peering.Text(group, peering.MaxMessageLen))
}

// Reasons with which Failed is called.
const (
	whyMismatch    = "the secrets of the group differ, or the connection was intercepted"
	whyUnconfirmed = "the cluster did not go on once it had this cluster's proof: it may have guessed the secret, or the connection was lost"
	whyLimited     = "too many proofs failed lately; others have to wait"
)

// Prove begins a run with a cluster, and returns this side's share and confirmation. It
// replaces the run before with the same cluster. Errors have the reasons GROUP_UNKNOWN,
// TRUST_DENIED, TRUST_FORGOTTEN, REQUEST_INVALID and RATE_LIMITED.
func (g *Groups) Prove(ctx context.Context, p identity.Proof) (share, confirmation []byte, err error) {
	if _, err := g.mayJoin(ctx, p.ID); err != nil {
		return nil, nil, err
	}
	g.mu.Lock()
	often := g.proven.wait(g.Now(), provenBy(p.ID))
	g.mu.Unlock()
	if often > 0 {
		return nil, nil, limited(often)
	}
	policy, secret, err := g.secret(ctx, p.Group)
	if err != nil {
		return nil, nil, err
	}
	run, err := pake.Respond(secret, pake.GroupRun(p.Group, string(p.ID), string(g.Self), p.Channel[:]), p.Share)
	switch {
	case errors.Is(err, pake.ErrShare):
		return nil, nil, peering.Errorf(peering.ReasonRequestInvalid, "share: %w", err)
	case err != nil:
		return nil, nil, fmt.Errorf("secret of group %s: %w", p.Group, err)
	}
	now := g.Now()
	counted := counted(p.ID, p.From)
	failed := g.expire(now)
	g.mu.Lock()
	if g.pending == nil {
		g.pending = map[peering.ClusterID]*proof{}
	}
	wait := g.answered.add(now, counted...)
	if wait == 0 {
		// Counted before it gets the confirmation, by which it learns whether its guess is right.
		if old := g.pending[p.ID]; old != nil {
			failed = append(failed, failure{old.group, p.ID, whyUnconfirmed})
		}
		g.pending[p.ID] = &proof{channel: p.Channel, info: p.Info, policy: policy, group: p.Group, run: run, at: now, counted: counted}
	} else {
		failed = append(failed, failure{p.Group, p.ID, whyLimited})
	}
	g.mu.Unlock()
	g.report(now, failed...)
	if wait > 0 {
		return nil, nil, limited(wait)
	}
	if g.Begun != nil {
		g.Begun(p.Group, p.ID)
	}
	return run.Share(), run.Confirmation(), nil
}

// Confirm ends the run of a cluster, and admits it if its confirmation is right. There is
// one try. Errors have the reasons PROOF_UNKNOWN, GROUP_SECRET_MISMATCH, TRUST_DENIED and
// TRUST_FORGOTTEN.
func (g *Groups) Confirm(ctx context.Context, id peering.ClusterID, channel [identity.ChannelLen]byte, confirmation []byte) error {
	now := g.Now()
	failed := g.expire(now)
	g.mu.Lock()
	p := g.pending[id]
	if p != nil && p.channel != channel {
		p = nil // only the connection that began a run may go on with it
	}
	var err error
	if p != nil {
		delete(g.pending, id)
		if err = p.run.Finish(confirmation); err == nil {
			g.answered.takeBack(now, p.counted...)
			g.proven.add(now, provenBy(id))
		} else {
			failed = append(failed, failure{p.group, id, whyMismatch})
		}
	}
	g.mu.Unlock()
	g.report(now, failed...)
	switch {
	case p == nil:
		return peering.Errorf(peering.ReasonProofUnknown, "your cluster began no proof over this connection: it expired, or this agent was restarted; begin again")
	case err != nil:
		return peering.Errorf(peering.ReasonGroupSecretMismatch, "this cluster's secret of group %s and yours differ, or the connection was intercepted: give both the same secret", p.group)
	}
	if trusted, err := g.mayJoin(ctx, id); trusted || err != nil { // since it began
		return err
	}
	return g.Admit(ctx, id, p.info, p.policy, p.group)
}

// Join proves to a cluster at an endpoint that this one holds a group's secret, and admits
// it once it did the same. Errors are those of Call and Admit, and GROUP_UNKNOWN,
// TRUST_DENIED, TRUST_FORGOTTEN and RATE_LIMITED where this side does not begin.
func (g *Groups) Join(ctx context.Context, group, endpoint string, id peering.ClusterID) error {
	if _, err := g.mayJoin(ctx, id); err != nil {
		return err
	}
	policy, secret, err := g.secret(ctx, group)
	if err != nil {
		return err
	}
	counted, now := counted(id, hostKey(endpoint)), g.Now()
	g.mu.Lock()
	wait := g.called.add(now, counted...)
	g.mu.Unlock()
	if wait > 0 {
		return limited(wait)
	}
	info, err := g.Call(ctx, endpoint, id, group, secret)
	now = g.Now()
	reason := peering.ReasonOf(err)
	if reason != peering.ReasonGroupSecretMismatch && reason != peering.ReasonResponseInvalid {
		// No cluster answered with a guess.
		g.mu.Lock()
		g.called.takeBack(now, counted...)
		g.mu.Unlock()
	}
	switch {
	case reason == peering.ReasonGroupSecretMismatch:
		g.report(now, failure{group, id, whyMismatch})
	case err == nil:
		if trusted, err := g.mayJoin(ctx, id); trusted || err != nil { // since it began
			return err
		}
		return g.Admit(ctx, id, info, policy, group)
	}
	return err
}

// counted returns the keys under which a run is counted: its cluster, its address, and all.
func counted(id peering.ClusterID, from string) []paced {
	return []paced{
		{"all", pace{GuessBurst, GuessPause}},
		{"address " + from, pace{GuessBurstPerAddress, GuessPausePerAddress}},
		{"cluster " + string(id), pace{GuessBurstPerCluster, GuessPausePerCluster}},
	}
}

// hostKey is the key of an endpoint in limits: its IPv4 address, the /64 of its IPv6 address, or
// its name.
func hostKey(endpoint string) string {
	host, _, err := net.SplitHostPort(endpoint)
	if err != nil {
		host = endpoint
	}
	a, err := netip.ParseAddr(host)
	if err != nil {
		return strings.ToLower(strings.TrimSuffix(host, "."))
	}
	if a = a.Unmap().WithZone(""); a.Is6() {
		if p, err := a.Prefix(64); err == nil {
			return p.String()
		}
	}
	return a.String()
}

// provenBy returns the key under which a run that succeeded is counted.
func provenBy(id peering.ClusterID) paced {
	return paced{"cluster " + string(id), pace{ProvenBurst, ProvenPause}}
}

func limited(wait time.Duration) error {
	return &peering.Error{Reason: peering.ReasonRateLimited, Message: "too many proofs that a cluster holds the secret of a group failed, are not over, or were made again and again", RetryAfter: wait}
}

// secret returns the secret of a group, and the policy that names it.
func (g *Groups) secret(ctx context.Context, group string) (policy string, secret pake.Secret, err error) {
	if g.Secret == nil {
		return "", nil, GroupUnknown(group)
	}
	policy, b, err := g.Secret(ctx, group)
	return policy, b, err
}

// mayJoin returns TRUST_DENIED or TRUST_FORGOTTEN if an administrator decided that a cluster is
// not trusted, which a secret does not overrule. trusted means that the two clusters already
// trust each other, so that a proof adds nothing.
func (g *Groups) mayJoin(ctx context.Context, id peering.ClusterID) (trusted bool, err error) {
	fc, err := store.Peek(ctx, g.Cache, id)
	switch {
	case err != nil:
		return false, err
	case fc != nil && fc.Spec.Decision == v1alpha1.DecisionDenied:
		return false, denied()
	case fc != nil && fc.DeletionTimestamp.IsZero() && !store.Pending(fc):
		return fc.Spec.TrustBundle != "" && meta.IsStatusConditionTrue(fc.Status.Conditions, v1alpha1.ConditionTrusted), nil
	}
	// A policy may trust again a cluster that a policy forgot.
	forgot, err := g.Forgotten.ByPerson(ctx, id)
	if err == nil && forgot {
		err = forgottenHere()
	}
	return false, err
}

// failure is a run that failed, as Failed gets it.
type failure struct {
	group string
	id    peering.ClusterID
	why   string
}

// expire removes the runs whose time is over.
func (g *Groups) expire(now time.Time) (failed []failure) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for id, p := range g.pending {
		if now.Sub(p.at) >= ProofTimeout {
			delete(g.pending, id)
			failed = append(failed, failure{p.group, id, whyUnconfirmed})
		}
	}
	return failed
}

// report calls Failed for what failed, no more often than its limit.
func (g *Groups) report(now time.Time, failed ...failure) {
	if g.Failed == nil {
		return
	}
	for _, f := range failed {
		g.mu.Lock()
		wait := g.news.add(now, paced{f.group, pace{GroupNewsBurst, GroupNewsPause}})
		g.mu.Unlock()
		if wait == 0 {
			g.Failed(f.group, f.id, f.why)
		}
	}
}
