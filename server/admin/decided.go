package admin

import (
	"context"

	corev1 "k8s.io/api/core/v1"
	ctrlclient "sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
)

// The log of the agent has who called what, and is gone with its pod. Who decided what is therefore in the objects and
// in events as well.

// by returns the text of what the caller did.
func (s *service) by(ctx context.Context, what string) string {
	return v1alpha1.DecidedBy(what, who(ctx), s.cfg.Now())
}

// who returns the caller's name, fit to be stored and shown.
func who(ctx context.Context) string {
	one := callerOf(ctx)
	if one == nil {
		return "an unknown user"
	}
	return peering.Text(one.user.Username, 256)
}

// decided records an event about what the caller decided.
func (s *service) decided(ctx context.Context, about ctrlclient.Object, reason, what string) {
	if s.cfg.Events != nil {
		s.cfg.Events.Eventf(about, nil, corev1.EventTypeNormal, reason, "Decide", "%s: by %s", what, who(ctx))
	}
}
