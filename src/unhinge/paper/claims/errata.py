"""What is wrong in the paper as printed, what is right, and the evidence: forty entries, in our own words."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["ERRATA", "Erratum"]


@dataclass(frozen=True)
class Erratum:
    """One difference. Severity A: false or undefined; B: a formula an implementer would copy; C: a slip.

    `unhinge verify erratum-N` puts the entry to the test. Where an entry, or a part of it, is a misprint that no number
    decides, its evidence says so.
    """

    number: int
    severity: str
    where: str
    printed: str
    right: str
    evidence: str


ERRATA = (
    Erratum(
        1,
        "A",
        "Section 3.1, the objective in matrix form",
        "features listed example by example, label matrix I_C ⊗ 1_Nᵀ, which groups by class",
        "one order for both: class by class with I_C ⊗ 1_Nᵀ, or 1_Nᵀ ⊗ I_C with the printed order",
        "the true loss is -0.11204, the printed pairing gives -0.35821",
    ),
    Erratum(
        2,
        "A",
        "Lemma 1",
        "the simplex ETF is the only minimiser, for every γ > 0 and p ≥ C-1",
        "every zero-mean W with rows of equal norm is a minimiser (the ETF alone only for C ≤ 3); needs "
        "0 < γ < 2/(C-2), and only p ≥ 2",
        "C = 4, γ = 0.3: (a, -a, b, -b) and the ETF both reach -1.3",
    ),
    Erratum(
        3,
        "A",
        "Lemma 1 beyond γ = 2/(C-2)",
        "the same statement",
        "all prototypes coincide and all features oppose them, value -(γ(C-1)-1) E₁E₂",
        "C = 5, γ = 2: -7, below -(1+γ) = -3",
    ),
    Erratum(
        4,
        "B",
        "Lemma 1, proof",
        "mean of |Cŵ - w_c|² is the mean of |w_c|² minus C²|ŵ|²",
        "plus C(C-2)|ŵ|²; the chain of inequalities needs another argument",
        "C = 5: 8.2373, printed form -0.9581",
    ),
    Erratum(
        5,
        "C",
        "Section 2; Appendix A on Wasserstein",
        "the loss as the mean of true minus other logits",
        "minus that",
        "-0.1413 against 0.1413",
    ),
    Erratum(
        6,
        "C",
        "throughout",
        "Wh + b with W of shape p × C; a softmax loss inside a proof; ascent in a footnote",
        "Wᵀh + b; the unhinged loss; descent, x' = -η∇f",
        "shapes, and steps of SGD; no number decides the name of the loss in a proof, or C × p for p × C",
    ),
    Erratum(
        7,
        "C",
        "Theorem 1",
        "coefficients depend on the rates at time 0 only; a misplaced product; distinct eigenvalues",
        "they depend on the integrated rates; (WM, HMᵀ); eigenvalues coincide at γ = 0, 1/(C-1), 2/(C-2)",
        "shapes and counts; the theorem itself agrees with an ODE solver to 9e-13 in 15 settings",
    ),
    Erratum(
        8,
        "C",
        "Theorem 1, Corollary 1",
        "s as the ratio of the rates at time 0",
        "undefined for a warm-up from zero: take the ratio of the integrated rates",
        "0/0",
    ),
    Erratum(
        9,
        "C",
        "Corollary 1",
        "no condition on the start; C = 2 for every γ; one fastest γ named; alignment taken for accuracy",
        "(X₀ + √s W₀) must not vanish after centring; γ > 0; for C = 2 every γ ≥ 1 ties; accuracy needs "
        "G_y·G_y > G_j·G_y",
        "an aligned limit with accuracy 0.3 at p = 2, C = 10; the fastest γ that is named is one of them",
    ),
    Erratum(
        10,
        "B",
        "Theorem 2",
        "the bias integral with ζ₂ inside",
        "with η₂ inside: (exp(λ₂ζ₂) - 1)/λ₂",
        "ODE 0.188835, printed 0.719602, corrected 0.188835",
    ),
    Erratum(
        11,
        "B",
        "Theorem 2, proof",
        "two entries of the matrix exponential swapped, θ₂ for ζ₂ and η₁ for ζ₁",
        "lower left σζ₂(e^θ₂ - e^θ₁)/(θ₂ - θ₁), and the lower right accordingly",
        "printed row (0.826, 0.219), true row (0.146, 0.826)",
    ),
    Erratum(
        12,
        "B",
        "Theorem 2, Corollary 2, b(t)",
        "plus (λ₁ζ₁ + θ₁ - σζ₂) times the decaying exponential",
        "minus (λ₁ζ₁ + θ₁ + σζ₂) times it; a(t) is right",
        "0.9106 against the true 0.9724",
    ),
    Erratum(
        13,
        "B",
        "Theorem 2",
        "a quotient by θ₂ - θ₁",
        "0/0 in the default setting s = 1, λ₁ = λ₂; use the cosh and sinh form",
        "printed a₃ is nan, true 0.8187",
    ),
    Erratum(
        14,
        "C",
        "Theorem 2, proof",
        "indices and signs in the commutator; θ₁ < 0; ∫η and λ without their indices; a projection listed twice",
        "λ₂[η₁(t₁)η₂(t₂) - η₁(t₂)η₂(t₁)]M; θ₁ ≤ 0; ∫ηᵢ and λ₂; the second pair of projections",
        "computer algebra, and θ₁ = 0 at σ = λ = 0; no number decides the lost indices and the repeated projection",
    ),
    Erratum(
        15,
        "B",
        "Corollary 2, proof",
        "decay above σ₁ makes ω₂ positive, below negative",
        "the other way round; the statement itself is right",
        "+0.139, 0, -0.235 at λ/σ₁ = 0.5, 1, 2",
    ),
    Erratum(
        16,
        "B",
        "Corollary 2, rate",
        "an exponent with the factor 1/(C√N)",
        "without it: it is already inside σ. The printed bound is true but loose",
        "36 of 36 settings, for example 0.057735 measured, 0.008333 printed",
    ),
    Erratum(
        17,
        "C",
        "Corollary 2, appendix form",
        "W normalised by the norm of a feature part",
        "by the norm of its own part",
        "the printed limit of W/|W| has a norm other than 1",
    ),
    Erratum(
        18,
        "B",
        "Section 3.2",
        "self-duality needs a condition, met at λ = σ₁ for instance; C ≤ p-1",
        "the condition is an identity: self-duality holds for every decay and s; an ETF needs p ≥ C-1",
        "both ratios equal in 4 settings",
    ),
    Erratum(
        19,
        "A",
        "Figure regularized-gamma, caption",
        "for all listed γ the state tends to its aligned part and norms do not grow",
        "false at γ = 0.1 > 2/98, where the norm grows as exp(2.47e-3 step), and at γ = 0, where the mean stays",
        "|H| from 253 to 921 to 1.26e5 within 4000 steps",
    ),
    Erratum(
        20,
        "C",
        "Figure regularized-scale",
        "larger s is faster",
        "for s ≤ 1; beyond, at γ = 1/(C-1), flat at λ = σ₁ and reversed for λ > σ₁",
        "ω/σ₁ at s = 1, 2, 10: 1, 1, 1 at λ = σ₁; 1, 0.56, 0.37 at λ = 3σ₁",
    ),
    Erratum(
        21,
        "C",
        "Figure regularized-lambda, caption",
        "(a) to (c) describe the panels of another figure",
        "the panels are accuracy, two distances and two norms",
        "by reading; no number decides which panel a caption means",
    ),
    Erratum(
        22,
        "C",
        "Section 3; Figure pal-toy",
        "every case converges exponentially, λ = 0 included",
        "anchored at λ = 0 the error falls as 1/ζ; towards the aligned limit there is no convergence at γ = 0 or "
        "2/(C-2) either",
        "the error halves when ζ doubles",
    ),
    Erratum(
        23,
        "C",
        "Prototype-anchored case",
        "a linear difference equation",
        "a differential one",
        "the derivative of the solution is minus the gradient, its difference over one unit of time is not",
    ),
    Erratum(
        24,
        "A",
        "Theorem 4 and Section 4.3",
        "the step condition with |h₀| (rescaled: without it)",
        "with |h₀|² (rescaled: |h₀|), that is α₀ ≤ 1; η/|h|² governs",
        "printed condition met with α₀ = 33, the cosine drops from 0.878 to 0.533",
    ),
    Erratum(
        25,
        "B",
        "Theorem 4, proof, the discrete step",
        "1 - η wᵀĥ/|h|",
        "1 - η wᵀĥ/|h|²",
        "one step of autograd",
    ),
    Erratum(
        26,
        "B",
        "Theorem 4",
        "rates bounded below, ratios tending to 1, a non-increasing quotient, a bounded norm",
        "true, but stricter than needed: η non-increasing with a divergent sum and α₀ ≤ 1; the norm is always bounded",
        "4000 random runs",
    ),
    Erratum(
        27,
        "B",
        "Theorem 4, proof end",
        "a squared error below c exp(-μt) read as an error of order exp(-μt)",
        "exp(-μt/2); the exact factor per step is |1 - α∞|",
        "exponents -0.1003 and -0.2006",
    ),
    Erratum(
        28,
        "C",
        "Lemma in Theorem 4; Section 3.4",
        "v̂ in terms of itself; |w| without an index in a footnote; the last index c, N",
        "v/|v|; |w_y|; N, C",
        "the footnote's loss has no value for prototypes of different norms; no number decides the other two",
    ),
    Erratum(
        29,
        "A",
        "Theorem 5",
        "a block matrix of K and I_C",
        "K is pCN × pCN; the blocks need a p × p kernel and I_p, that is K = I ⊗ K_p only",
        "shapes",
    ),
    Erratum(
        30,
        "A",
        "Theorem 5",
        "a product U_B⁻¹U_A⁻¹ ⊗ I",
        "U_A⁻¹ ⊗ U_B⁻¹",
        "relative error 1.09 against 2.7e-15",
    ),
    Erratum(
        31,
        "B",
        "Theorem 5",
        "always diagonalisable; no learning rate",
        "defective for singular K; exponent ζ(t)",
        "eigenvector rank 3 of 4",
    ),
    Erratum(
        32,
        "B",
        "Section 3.5, squared error",
        "the residual with a plus sign",
        "with a minus sign",
        "the plus sign increases the loss",
    ),
    Erratum(
        33,
        "A",
        "Appendix A, second mention",
        "correct if the loss is below +(1+γ)√((C-2)/(2(C-1)))",
        "below minus that",
        "41 679 of 400 000 misclassified with plus, none with minus",
    ),
    Erratum(34, "C", "Appendix A", "(w_yᵀ + b_y)h", "w_yᵀh + b_y", "no violation in 200 000 draws"),
    Erratum(
        35,
        "A",
        "Appendix D.3",
        "the correction with w_y + ĥĥᵀw_y; undefined at cosine -1",
        "w_y - ĥĥᵀw_y; any unit vector orthogonal to ĥ at -1",
        "cosine -0.99588 in place of -0.95; corrected -0.95",
    ),
    Erratum(
        36,
        "B",
        "Section 4.1, footnote",
        "minimise the sum of log-softmax to obtain an ETF",
        "maximise it",
        "printed: Gram 1.2 off; corrected: ETF to 3e-16",
    ),
    Erratum(
        37,
        "C",
        "Section 4.2",
        "the penalty λ times a sum of squares",
        "the theory has λ/2 beside a mean loss: a factor 2 and the batch size differ",
        "features come to rest at WM/(2λ)",
    ),
    Erratum(
        38,
        "C",
        "Section 3.2",
        "features of minority classes approach zero",
        "only if at least two classes tie for largest; otherwise they share one direction with weight",
        "ratio 0.2, constant, against one that vanishes",
    ),
    Erratum(
        39,
        "C",
        "Section 4.3",
        "norm growth slows convergence; rescaling always accelerates",
        "growth is bounded by 4θ₀c/π; |h₀| matters, and rescaling is slower for |h| < 1",
        "|h₀| = 0.2: plain is faster",
    ),
    Erratum(
        40,
        "C",
        "Corollary 1 and Theorem 1, proofs",
        "max over max; ones of length CN√N; lost transposes and factors",
        "max over min; ones of length CN; harmless: the ends of the chains are right",
        "one line is √N times too large; the other slips change no number: a quotient of two equal maxima, which is 1, "
        "and transposes that are missing",
    ),
)
