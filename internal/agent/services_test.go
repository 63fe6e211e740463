package agent

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/entente-dev/entente/internal/kube"
)

// The prefixes of Services are asked for once a minute, however often they are needed,
// and what was known stays while the API server is away.
func TestServicePrefixesAreCached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		asked, away := 0, errors.New("the API server is away")
		err := away
		client := interceptor.NewClient(fake.NewClientBuilder().WithScheme(kube.Scheme()).Build(), interceptor.Funcs{
			List: func(ctx context.Context, c ctrlclient.WithWatch, list ctrlclient.ObjectList, opts ...ctrlclient.ListOption) error {
				if asked++; err != nil {
					return err
				}
				return c.List(ctx, list, opts...)
			},
		})
		has := func(cidrs ...string) {
			t.Helper()
			o := &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}}
			if err := client.Delete(t.Context(), o); ctrlclient.IgnoreNotFound(err) != nil {
				t.Fatal(err)
			}
			o = &networkingv1.ServiceCIDR{ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, Spec: networkingv1.ServiceCIDRSpec{CIDRs: cidrs}}
			if err := client.Create(t.Context(), o); err != nil {
				t.Fatal(err)
			}
		}
		named := netip.MustParsePrefix("10.96.0.0/16")
		prefixes := servicePrefixes([]netip.Prefix{named}, client, slog.New(slog.DiscardHandler))
		want := func(calls int, texts ...string) {
			t.Helper()
			wanted := []netip.Prefix{named}
			for _, text := range texts {
				wanted = append(wanted, netip.MustParsePrefix(text))
			}
			for range 100 {
				if got, err := prefixes(t.Context()); err != nil || !slices.Equal(got, wanted) {
					t.Fatalf("got %v, %v, want %v", got, err, wanted)
				}
			}
			if asked != calls {
				t.Errorf("the API server was asked %d times, want %d", asked, calls)
			}
		}
		has("10.98.7.0/16", "fd00:98::/108")
		if got, err := prefixes(t.Context()); !errors.Is(err, away) {
			t.Errorf("got %v, %v, want an error", got, err)
		}
		if _, err := prefixes(t.Context()); !errors.Is(err, away) || asked != 1 {
			t.Errorf("asked %d times at once, %v", asked, err)
		}
		err = nil
		time.Sleep(lookupRetry)
		want(2, "10.98.0.0/16", "fd00:98::/108")
		has("10.99.0.0/16")
		time.Sleep(lookupInterval)
		want(3, "10.99.0.0/16")
		err = away
		time.Sleep(lookupInterval)
		want(4, "10.99.0.0/16")
	})
}
