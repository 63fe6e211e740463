package store

import (
	"errors"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/api/v1alpha1"
	"github.com/entente-dev/entente/internal/identity"
	"github.com/entente-dev/entente/peering"
)

func TestPricesAndMoneyReadBack(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		in  *v1alpha1.PriceList
		bad bool
	}{
		"free of charge":      {},
		"some prices":         {in: &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "0.025", "memory": "0"}}},
		"below zero":          {in: &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "-1"}}, bad: true},
		"an exponent":         {in: &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"cpu": "1e3"}}, bad: true},
		"without a currency":  {in: &v1alpha1.PriceList{PerHour: map[string]v1alpha1.Decimal{"cpu": "1"}}, bad: true},
		"in no money at all":  {in: &v1alpha1.PriceList{Currency: "gold", PerHour: map[string]v1alpha1.Decimal{"cpu": "1"}}, bad: true},
		"of what has no name": {in: &v1alpha1.PriceList{Currency: "EUR", PerHour: map[string]v1alpha1.Decimal{"": "1"}}, bad: true},
		"a currency alone":    {in: nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p, err := Prices(tc.in)
			if (err != nil) != tc.bad {
				t.Fatalf("error %v", err)
			}
			if err == nil {
				if diff := cmp.Diff(tc.in, PricesOf(p)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
	if p, err := Prices(&v1alpha1.PriceList{Currency: "EUR"}); err != nil || !p.IsFree() || p.Currency != "" {
		t.Errorf("a currency without prices is %+v, %v", p, err)
	}
	for name, tc := range map[string]struct {
		in  *v1alpha1.Money
		bad bool
	}{
		"none": {}, "some": {in: &v1alpha1.Money{Currency: "EUR", Amount: "0.42"}}, "zero": {in: &v1alpha1.Money{Currency: "EUR", Amount: "0"}},
		"too fine": {&v1alpha1.Money{Currency: "EUR", Amount: "0.0000000001"}, true}, "without a currency": {&v1alpha1.Money{Amount: "1"}, true},
	} {
		t.Run("money, "+name, func(t *testing.T) {
			t.Parallel()
			m, err := Money(tc.in)
			if (err != nil) != tc.bad {
				t.Fatalf("error %v", err)
			}
			if err == nil {
				if diff := cmp.Diff(tc.in, MoneyOf(m)); diff != "" {
					t.Errorf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

func TestAMeterReadsBackAsItWasKept(t *testing.T) {
	t.Parallel()
	terms := peering.Terms{NotBefore: start, Clauses: peering.Clauses{StatementPeriod: time.Hour}}
	using, err := peering.ParseResources(map[string]string{"cpu": "1500m", "memory": "3Gi"})
	if err != nil {
		t.Fatal(err)
	}
	c := &v1alpha1.Contract{ObjectMeta: metav1.ObjectMeta{Name: "c-1"}}
	first, err := Meter(c, terms)
	if err != nil || !first.Since.Equal(start) || !first.Until.Equal(start) {
		t.Fatalf("the first is %+v, %v", first, err)
	}
	meter, _ := first.Observe(start.Add(time.Minute), using)
	meter, ended := meter.Observe(start.Add(time.Minute+61*time.Minute), using)
	meter, _ = meter.Observe(start.Add(62*time.Minute+1234*time.Millisecond), using)
	if len(ended) != 1 {
		t.Fatalf("%d periods", len(ended))
	}
	if err := KeepMeter(c, meter); err != nil {
		t.Fatal(err)
	}
	// A later revision begins later, and does not move the periods.
	terms.NotBefore = terms.NotBefore.Add(30 * time.Minute)
	got, err := Meter(c, terms)
	if err != nil {
		t.Fatal(err)
	}
	if got.Sequence != meter.Sequence || !got.Since.Equal(meter.Since) || !got.Until.Equal(meter.Until) || !got.Used.Equal(meter.Used) || got.Using.String() != meter.Using.String() {
		t.Errorf("it is %+v, kept %+v", got, meter)
	}
	for name, spoil := range map[string]func(*v1alpha1.Usage){
		"an amount below zero":      func(u *v1alpha1.Usage) { u.UnitSeconds = map[string]string{"cpu": "-1"} },
		"an amount of nothing":      func(u *v1alpha1.Usage) { u.UnitSeconds = map[string]string{"": "1"} },
		"a count before the begin":  func(u *v1alpha1.Usage) { u.Until = metav1.NewMicroTime(u.Since.Add(-time.Second)) },
		"a period before the first": func(u *v1alpha1.Usage) { u.Sequence = -1 },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := c.DeepCopy()
			spoil(c.Status.Usage)
			if m, err := Meter(c, terms); err == nil {
				t.Errorf("it reads as %+v", m)
			}
		})
	}
}

func TestAStateReadsBackAsItWasWritten(t *testing.T) {
	t.Parallel()
	consumer, err1 := identity.Generate(start)
	provider, err2 := identity.Generate(start)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	stored, err := NewContract(contract(t, consumer, provider), consumer.ID(), "milan")
	if err != nil {
		t.Fatal(err)
	}
	value, _, err := ReadContract(stored, consumer.ID())
	if err != nil {
		t.Fatal(err)
	}
	apply := func(e peering.Event) {
		t.Helper()
		var err error
		if value, err = value.Apply(e); err != nil {
			t.Fatal(err)
		}
		WriteState(stored, value)
		again, _, err := ReadContract(stored, consumer.ID())
		if err != nil {
			t.Fatal(err)
		}
		want := value
		if want.State == peering.Closed {
			want.DrainUntil = time.Time{} // which is over
		}
		if again != want {
			t.Errorf("after %T it reads as %+v, written was %+v", e, again, want)
		}
	}
	apply(peering.Tick{Now: start})
	apply(peering.PeerReported{Phase: peering.PhaseDraining, DrainUntil: start.Add(20 * time.Minute), Now: start.Add(time.Minute)})
	if stored.Status.Reason != "EndedByPeer" || stored.Status.DrainUntil == nil || stored.Status.ClosedAt != nil {
		t.Errorf("draining it is %+v", stored.Status)
	}
	apply(peering.Tick{Now: start.Add(20 * time.Minute)})
	if stored.Status.Phase != "Closed" || stored.Status.Reason != "EndedByPeer" || stored.Status.ClosedAt == nil {
		t.Errorf("closed it is %+v", stored.Status)
	}
}
