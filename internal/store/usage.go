package store

import (
	"cmp"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/peering"
	"github.com/entente-dev/entente/peering/meter"
)

// Meter returns a contract's meter as it was stored; without one, a meter that begins with the contract.
func Meter(c *v1alpha1.Contract, terms peering.Terms) (meter.Meter, error) {
	meter := meter.New(terms.NotBefore, terms.StatementPeriod)
	kept := c.Status.Usage
	if kept == nil {
		return meter, nil
	}
	var err error
	if meter.Using, err = Resources(kept.Using); err != nil {
		return meter, fmt.Errorf("status.usage of contract %s: %w", c.Name, err)
	}
	if meter.Used, err = peering.ParseUsage(kept.UnitSeconds); err != nil {
		return meter, fmt.Errorf("status.usage of contract %s: %w", c.Name, err)
	}
	if kept.Sequence < 0 || kept.Until.Time.Before(kept.Since.Time) {
		return meter, fmt.Errorf("status.usage of contract %s: period %d, until %s, is before its begin", c.Name, kept.Sequence, kept.Until)
	}
	meter.Sequence, meter.Since, meter.Until = uint64(kept.Sequence), kept.Since.Time.UTC(), kept.Until.Time.UTC()
	return meter, nil
}

// KeepMeter stores a meter, without changing the periods that are stored with it.
func KeepMeter(c *v1alpha1.Contract, meter meter.Meter) error {
	using, err := ResourceList(meter.Using)
	if err != nil {
		return err
	}
	c.Status.Usage = cmp.Or(c.Status.Usage, &v1alpha1.Usage{})
	u := c.Status.Usage
	u.Since = metav1.NewMicroTime(meter.Since)
	u.Until = metav1.NewMicroTime(meter.Until)
	u.Using, u.UnitSeconds, u.Sequence = using, meter.Used.Strings(), int64(meter.Sequence)
	return nil
}
