package v1alpha1

// Money is an amount in a currency, decimal.
type Money struct {
	// currency is ISO 4217, or another name of three capital letters.
	// +kubebuilder:validation:Pattern=`^[A-Z]{3}$`
	Currency string `json:"currency"`
	// amount is digits, and up to nine more after a point, the last of them not 0.
	// +kubebuilder:validation:MaxLength=19
	// +kubebuilder:validation:XValidation:rule="self.matches('^(0|[1-9][0-9]{0,8})([.][0-9]{0,8}[1-9])?$')",message="an amount is decimal: digits, and up to nine more after a point, the last of them not 0: 0.5, not 0.50"
	Amount string `json:"amount"`
}

// PriceList is what resources cost.
type PriceList struct {
	// currency is ISO 4217, or another name of three capital letters.
	// +kubebuilder:validation:Pattern=`^[A-Z]{3}$`
	Currency string `json:"currency"`
	// perHour is what one unit costs an hour, decimal, by resource. A unit is one core, one pod, one device; of
	// memory and storage one gibibyte. Resources that are not listed are free.
	// +kubebuilder:validation:MaxProperties=64
	// +kubebuilder:validation:XValidation:rule="self.all(k, self[k].matches('^(0|[1-9][0-9]{0,8})([.][0-9]{0,8}[1-9])?$'))",message="prices are decimal: digits, and up to nine more after a point, the last of them not 0"
	PerHour map[string]Decimal `json:"perHour"`
}

// Decimal is a decimal number, such as 0.025.
// +kubebuilder:validation:MaxLength=19
type Decimal string
