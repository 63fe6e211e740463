package agent

import (
	"context"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/automatic"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/internal/kube"
	"github.com/entente-dev/entente/internal/notify"
	"github.com/entente-dev/entente/internal/trust"
	"github.com/entente-dev/entente/peering"
)

// peerByPolicy builds automatic peering with clusters that discovery finds, as policies say.
func (a *agent) peerByPolicy(ctx context.Context) error {
	wake, secrets := notify.New(), notify.New()
	for _, kind := range []ctrlclient.Object{
		&v1alpha1.ForeignCluster{}, &v1alpha1.PeeringPolicy{}, &v1alpha1.PeeringRequest{}, &v1alpha1.NamespaceOffloading{}, &corev1.Namespace{},
	} {
		if _, err := kube.OnChange(ctx, a.mgr.GetCache(), kind, kube.NewVersion, wake.Notify); err != nil {
			return err
		}
	}
	secret := &metav1.PartialObjectMetadata{}
	secret.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("Secret"))
	if _, err := kube.OnChange(ctx, a.mgr.GetCache(), secret, kube.NewVersion, secrets.Notify); err != nil {
		return err
	}
	a.automatic = &automatic.Automatic{
		Client: a.mgr.GetClient(), Direct: a.direct, Namespace: a.cfg.Namespace, Self: a.source.ID(),
		Introduce: func(ctx context.Context, endpoint string, id peering.ClusterID) (identity.ClusterInfo, string, error) {
			return strangers{a}.Introduce(ctx, endpoint, id, false)
		},
		JoinGroup: a.groups.Join, Valid: a.provider.Validate, MayDial: a.mayDial,
		Forgotten: a.forgotten, Events: a.events, AttemptChanged: a.peersWake.wake, Wake: wake, Secrets: secrets, Log: a.log, Now: time.Now,
		Random: rand.N[time.Duration],
	}
	a.announces = func() bool {
		announces, err := a.automatic.Announces(ctx)
		return err == nil && announces // it is read again soon
	}
	a.groups.Secret, a.groups.Admit = a.automatic.GroupSecret, a.automatic.Admit
	a.groups.Begun = a.automatic.GroupProofStarted
	a.groups.Failed = func(group string, id peering.ClusterID, why string) { a.automatic.GroupFailed(ctx, group, id, why) }
	return a.mgr.Add(a.automatic)
}

// firstAttempt returns the first attempt that is not empty.
func firstAttempt(all ...func(*v1alpha1.ForeignCluster) trust.Attempt) func(*v1alpha1.ForeignCluster) trust.Attempt {
	return func(fc *v1alpha1.ForeignCluster) trust.Attempt {
		for _, attempt := range all {
			if a := attempt(fc); a.Reason != "" {
				return a
			}
		}
		return trust.Attempt{}
	}
}
