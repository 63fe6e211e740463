package volumes

import (
	"context"
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/entente-dev/entente/peering"
)

// TestAVolumeInAnotherNamespaceIsNeitherMadeAgainNorLost has a consumer ask for a volume, or order
// its deletion, in a namespace other than that in which the volume is.
func TestAVolumeInAnotherNamespaceIsNeitherMadeAgainNorLost(t *testing.T) {
	o, err := object("blog", "u1", peering.ClaimObject{Claim: "data-0", StorageClass: "fast", Bytes: gi}, []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce})
	if err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func(ctx context.Context, c client.Client) error{
		"asked for":                          func(ctx context.Context, c client.Client) error { return Apply(ctx, c, share, "blog-1", o) },
		"deleted":                            func(ctx context.Context, c client.Client) error { return Delete(ctx, c, "p", "blog-1", o.Ref) },
		"deleted, and that namespace is not": func(ctx context.Context, c client.Client) error { return Delete(ctx, c, "p", "", o.Ref) },
	} {
		t.Run(name, func(t *testing.T) {
			c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(
				&storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "fast"}}, claim("u1", gi, inShop),
			).Build()
			var refusal *peering.Refusal
			if err := do(t.Context(), c); !errors.As(err, &refusal) || !refusal.Retryable || !strings.Contains(refusal.Message, "shop-1") {
				t.Errorf("got %v, want a refusal that names the namespace", err)
			}
			var all corev1.PersistentVolumeClaimList
			if err := c.List(t.Context(), &all); err != nil || len(all.Items) != 1 || all.Items[0].Namespace != "shop-1" {
				t.Errorf("volumes %v, %v", all.Items, err)
			}
		})
	}
}

func TestADeletedVolumeOfAnotherPeerIsNotLookedFor(t *testing.T) {
	c := fake.NewClientBuilder().WithScheme(clientgoscheme.Scheme).WithObjects(claim("u1", gi, inShop)).Build()
	ref := peering.ObjectRef{Kind: peering.KindClaim, Namespace: "blog", Name: Name("u1"), UID: "u1"}
	if err := Delete(t.Context(), c, "stranger", "blog-1", ref); err != nil {
		t.Error(err)
	}
}
