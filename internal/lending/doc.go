// Package lending is a cluster as a provider: it reads what there is and has package
// market decide, holds back what it offered until that is signed or lapses, signs
// contracts, tells peers of what they would get, and shows administrators the requests
// that wait for them. OfferWatch keeps what other providers tell.
package lending
