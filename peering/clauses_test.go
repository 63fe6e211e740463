package peering

import (
	"reflect"
	"testing"
	"time"
)

// A clause that Differs forgot could be changed between the offer and the contract.
func TestDiffersComparesEachClause(t *testing.T) {
	full := Clauses{
		Resources: Resources{"cpu": Whole(4)}, Network: true, PodSecurity: PodSecurityBaseline, NodeLabels: map[string]string{"a": "b"},
		Price: PriceList{Currency: "EUR", PerHour: map[string]Decimal{"cpu": {nano: 1}}}, Renewable: true, Notice: time.Hour,
		StatementPeriod: time.Hour, Exposure: ExposureOffloaded, Pool: "gpu", NodeSelector: map[string]string{"a": "b"}, RuntimeClasses: []string{"gvisor"},
		LimitRange: LimitRange{DefaultRequest: Resources{"cpu": Whole(1)}},
	}
	if what := full.Differs(full); what != "" {
		t.Errorf("it differs from itself: %s", what)
	}
	for i := range reflect.TypeFor[Clauses]().NumField() {
		name := reflect.TypeFor[Clauses]().Field(i).Name
		if reflect.ValueOf(full).Field(i).IsZero() {
			t.Fatalf("%s has no value in this test", name)
		}
		less := full
		reflect.ValueOf(&less).Elem().Field(i).SetZero()
		if full.Differs(less) == "" || less.Differs(full) == "" {
			t.Errorf("another %s is taken for the same", name)
		}
	}
}
