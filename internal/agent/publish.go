package agent

import (
	"context"
	"time"

	"github.com/entente-dev/entente/discovery"
	"github.com/entente-dev/entente/internal/dnsupdate"
)

// publish publishes this cluster in DNS while this agent leads.
func (a *agent) publish(_ context.Context, cfg dnsupdate.Config) error {
	p := &dnsupdate.Publishing{
		Config: cfg, Namespace: a.cfg.Namespace, Client: a.direct, Events: a.events, Log: a.log, Now: time.Now, Report: &a.published,
		Service: func() discovery.Service { return a.service(a.endpoints()) },
	}
	return a.run(p.Run)
}
