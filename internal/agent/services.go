package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
)

// services is the prefixes of this cluster's Services: those that its administrator
// names, and those that its API server has. That one is asked once a minute: each
// reconciliation of each peer needs them.
type services struct {
	named  []netip.Prefix
	direct ctrlclient.Reader
	now    func() time.Time
	log    *slog.Logger

	mu   sync.Mutex
	has  []netip.Prefix
	at   time.Time
	told bool
	// failed is why nothing is known yet; it is asked again after lookupRetry.
	failed error
}

// prefixes is a [controller.Reserved]. It fails only until the API server answered once.
func (s *services) prefixes(ctx context.Context) ([]netip.Prefix, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	pause := lookupInterval
	if s.failed != nil {
		pause = lookupRetry
	}
	if s.at.IsZero() || s.now().Sub(s.at) >= pause {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		has, err := serviceCIDRs(ctx, s.direct)
		switch {
		case err == nil:
			s.has, s.failed = has, nil
		case s.at.IsZero() || s.failed != nil:
			s.failed = err
		case !s.told:
			s.log.Warn("cannot tell which prefixes Services have now; those of before count", "err", err)
		}
		s.at, s.told = s.now(), err != nil
	}
	if s.failed != nil {
		return nil, s.failed
	}
	return slices.Concat(s.named, s.has), nil
}

// serviceCIDRs returns the prefixes of this cluster's Services, as far as its API server
// says: since Kubernetes 1.33 (KEP-1880). An older one has no such kind.
func serviceCIDRs(ctx context.Context, direct ctrlclient.Reader) ([]netip.Prefix, error) {
	var list networkingv1.ServiceCIDRList
	err := direct.List(ctx, &list)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("find out which prefixes Services have: %w", err)
	}
	var out []netip.Prefix
	for i := range list.Items {
		out = append(out, prefixes(list.Items[i].Spec.CIDRs)...)
	}
	return out, nil
}
