package agent

import (
	"cmp"
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

	"github.com/entente-dev/entente/internal/controller"
	"github.com/entente-dev/entente/internal/kube"
)

const (
	// lookupInterval is how often the API server is asked about this cluster's own addresses, lookupTimeout how
	// long that may take, and lookupRetry how soon it is asked again until its first response.
	lookupInterval, lookupTimeout, lookupRetry = time.Minute, 5 * time.Second, 5 * time.Second
)

// lastKnown caches a response of the API server until there is a newer one: it is needed more often than the server
// should be asked.
type lastKnown[T any] struct {
	ask func(context.Context) (T, error)
	// what names what is read, for the log.
	what string
	// every is the least time between two reads; 0 means lookupInterval.
	every time.Duration
	now   func() time.Time
	log   *slog.Logger

	mu    sync.Mutex
	value T
	known bool
	// asked is the time of the last read, and err its error.
	asked time.Time
	err   error
}

// get fails only until the API server has responded once.
func (k *lastKnown[T]) get(ctx context.Context) (T, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	pause := cmp.Or(k.every, lookupInterval)
	if !k.known && pause > lookupRetry {
		pause = lookupRetry
	}
	if k.asked.IsZero() || k.now().Sub(k.asked) >= pause {
		ctx, cancel := context.WithTimeout(ctx, lookupTimeout)
		defer cancel()
		value, err := k.ask(ctx)
		if err == nil {
			k.value, k.known = value, true
		} else if k.err == nil {
			k.log.Warn("cannot read from the API server; its last response is used", "what", k.what, "known", k.known, "err", err)
		}
		k.asked, k.err = k.now(), err
	}
	if !k.known {
		return k.value, k.err
	}
	return k.value, nil
}

// servicePrefixes is a [controller.Reserved]: the prefixes of this cluster's Services, those that its administrator
// configured, and those that its API server has.
func servicePrefixes(named []netip.Prefix, direct ctrlclient.Reader, log *slog.Logger) controller.Reserved {
	has := &lastKnown[[]netip.Prefix]{now: time.Now, log: log, what: "which prefixes Services have", ask: func(ctx context.Context) ([]netip.Prefix, error) {
		return serviceCIDRs(ctx, direct)
	}}
	return func(ctx context.Context) ([]netip.Prefix, error) {
		all, err := has.get(ctx)
		return slices.Concat(named, all), err
	}
}

// serviceCIDRs returns the prefixes of this cluster's Services, as far as its API server has ServiceCIDRs: since
// Kubernetes 1.33 (KEP-1880). An older one does not have the kind.
func serviceCIDRs(ctx context.Context, direct ctrlclient.Reader) ([]netip.Prefix, error) {
	var list networkingv1.ServiceCIDRList
	err := direct.List(ctx, &list)
	if meta.IsNoMatchError(err) || apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list service CIDRs: %w", err)
	}
	var out []netip.Prefix
	for i := range list.Items {
		out = append(out, kube.Prefixes(list.Items[i].Spec.CIDRs)...)
	}
	return out, nil
}
