"""OptINC: a photonic unit that averages the gradients of N servers (Fei et al., "OptINC: Optical
In-Network-Computing").

Every server sends B-bit numbers as PAM4 symbols. A preprocessing unit P averages groups of neighbouring
symbols over the servers, an optical neural network f turns these K analogue values into the PAM4 symbols of
the quantised mean, and a splitter T sends them back to all (section III). Here is what these parts compute,
and nothing of light in time; gradients become whole numbers in ``fabric.whole_numbers``:

``pam4``           B-bit numbers to symbols and back (Eq. 2)
``averaging``      P, the exact mean that is the goal (Eq. 3), two levels of units (Eq. 8-10)
``structure``      the paper's networks, their interferometers and area (Tables I and II)
``network``        a network's outputs for every input there is, compared with the goal
``approximation``  layers as diagonal times orthogonal matrices
``mesh``           such matrices as meshes of interferometers, and back
``imperfect``      what a network on meshes computes whose phases are off, or that lose light
``sweeps``         how many answers are wrong against phases, loss and noise
``designed``       weights by formula for the paper's networks: designed, not trained
``gradients``      the mean of gradients by way of a unit, in one process
``wrong_answers``  the wrong answers that Table II reports, drawn at random
``weights``        trained weights, and their form in a file
``wire``           what servers and a unit say to each other on a connection

numpy alone. No clock and no seed: what is random is drawn from a Generator that is handed in. No file is
read but the weights that are part of the program.
"""
